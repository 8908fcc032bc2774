// Plays the recorded courses of workgroups on one compute unit, against a clock. timeline.py says what is modelled.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

namespace {

constexpr int kSimds = 4;

// As in counting/profile.py.
enum Kind { kVector, kScalar, kMatrix, kLds, kConstant, kMemory, kWait, kBarrier, kRelease, kAcquire, kFill };
enum Memory { kLoad, kStore, kAtomic };

// What waves stand still for: as STALLS in timeline.py.
enum Stall {
    kStallIssue,
    kStallMatrix,
    kStallLds,
    kStallScalar,
    kStallHbm,
    kStallL2,
    kStallStore,
    kStallAtomic,
    kStallBarrier,
    kStallFlag,
    kStallCount
};

struct Step {
    int32_t kind, a, b, c, d, e, f;
};

// Cycles, and bytes a cycle of the unit: as UnitRates in timeline.py.
struct Rates {
    double hbm, fabric, store, l2, l1, hbm_latency, fabric_latency, l2_latency, scalar_latency, lds_latency,
        atomic_latency;
    double issue, barrier, start, matrix_gap, lds_cycle_latency, reach;
};

// Of what a workgroup touches for the first time: the share that its chiplet's L2 lacks, and of that what is not in
// the memory-side cache either.
struct Buffer {
    double fills, hbm;
};

struct Output {
    double cycles, flying, lived, stalls[kStallCount];
};

using Queue = std::deque<std::pair<double, Stall>>;

struct Wave;

struct Group {
    int alive = 0;
    double latest_end = 0;
    std::vector<Wave*> at_barrier;
    std::map<std::pair<int, int>, double> written;
    std::map<std::pair<int, int>, std::vector<Wave*>> looking;
};

struct Wave {
    std::shared_ptr<Group> group;
    const Step *at, *end;
    int simd;
    double clock, begin, lds;
    Queue vm, lgkm;
};

class Unit {
  public:
    Unit(const Rates& rates, const Buffer* buffers, Output* out) : rates_(rates), buffers_(buffers), out_(*out) {}

    // `waves` are the ends of each wave's steps, in `steps`, of each kind of workgroup.
    void run(const Step* steps, const int64_t* ends, const int* waves_of, int kinds, int groups, int resident) {
        std::vector<int> first(kinds + 1, 0);
        for (int i = 0; i < kinds; ++i) first[i + 1] = first[i] + waves_of[i];
        int next = 0;
        const auto start = [&](double clock) {
            const int kind = next++ % kinds;
            auto group = std::make_shared<Group>();
            for (int i = first[kind]; i < first[kind + 1]; ++i) {
                const int64_t begin = i ? ends[i - 1] : 0;
                waves_.push_back(std::unique_ptr<Wave>(new Wave{
                    group, steps + begin, steps + ends[i], int(started_++ % kSimds), clock, clock, 0, {}, {}}));
                ++group->alive;
                push(waves_.back().get());
            }
        };
        while (next < std::min(groups, resident)) start(0);
        double latest = 0;
        while (!ready_.empty()) {
            Wave* const wave = ready_.top().wave;
            ready_.pop();
            if (wave->at != wave->end) {
                if (step(*wave)) push(wave);
            } else if (end(*wave)) {
                latest = std::max(latest, wave->group->latest_end);
                if (next < groups) start(wave->group->latest_end + rates_.start);
            }
        }
        out_.cycles = std::max(latest, hbm_);  // stores are done when they are in memory
    }

  private:
    struct Ready {
        double clock;
        int64_t order;
        Wave* wave;
        bool operator<(const Ready& other) const {
            return clock != other.clock ? clock > other.clock : order > other.order;
        }
    };

    void push(Wave* wave) { ready_.push({wave->clock, order_++, wave}); }

    void stall(Wave& wave, double until, Stall what) {
        if (until > wave.clock) {
            out_.stalls[what] += until - wave.clock;
            wave.clock = until;
        }
    }

    void memory(Wave& wave, const Step& s) {
        const double size = 64.0 * s.a;
        const double begin = std::max(wave.clock, l1_);
        wave.clock = begin + rates_.issue;
        l1_ = begin + size / rates_.l1;
        l2_ = std::max(begin, l2_) + size / rates_.l2;
        const double latency = s.d == kAtomic ? rates_.atomic_latency : rates_.l2_latency;
        double back = l2_ + latency;
        Stall what = s.d == kAtomic ? kStallAtomic : s.d == kStore ? kStallStore : kStallL2;
        // Lines that are new to the workgroup, and those that L2 has lost since it last touched them (they are in the
        // memory-side cache).
        const double is_new = 64.0 * s.b * buffers_[s.f].fills;
        const double lost = s.c > rates_.reach ? 64.0 * (s.a - s.b) * (1 - rates_.reach / s.c) : 0;
        if (const double fill = is_new + lost; fill > 0) {
            const double of_hbm = is_new > 0 ? buffers_[s.f].hbm : 0;
            fabric_ = std::max(begin, fabric_) + fill / (s.d == kStore ? rates_.store : rates_.fabric);
            hbm_ = std::max(begin, hbm_) + is_new * of_hbm / rates_.hbm;
            if (s.d == kLoad) {
                // Workgroups that share a line ask for it at about the same time: all wait for the one that fetches it.
                const double beyond = rates_.fabric_latency + (rates_.hbm_latency - rates_.fabric_latency) * of_hbm;
                back = std::max(back, std::max(fabric_, hbm_) + beyond), what = kStallHbm;
            } else {
                back = std::max(back, std::max(fabric_, hbm_) + latency);
            }
        }
        enqueue(wave.vm, back, what);
        if (s.e) enqueue(wave.lgkm, back, what);
        if (s.d == kLoad) out_.flying += wave.vm.back().first - begin;
    }

    static void enqueue(Queue& queue, double back, Stall what) {
        queue.emplace_back(queue.empty() ? back : std::max(back, queue.back().first), what);
    }

    void wait(Wave& wave, Queue& queue, int allowed) {
        while (int(queue.size()) > allowed) {
            stall(wave, queue.front().first, queue.front().second);
            queue.pop_front();
        }
    }

    void open_barrier(Group& group) {
        if (group.at_barrier.empty() || int(group.at_barrier.size()) != group.alive) return;
        double latest = 0;
        for (const Wave* wave : group.at_barrier) latest = std::max(latest, wave->clock);
        for (Wave* wave : group.at_barrier) {
            stall(*wave, latest + rates_.barrier, kStallBarrier);
            push(wave);
        }
        group.at_barrier.clear();
    }

    // Whether the wave can go on by itself.
    bool step(Wave& wave) {
        const Step& s = *wave.at++;
        Group& group = *wave.group;
        switch (s.kind) {
            case kVector:
                stall(wave, vector_[wave.simd], kStallIssue);
                wave.clock += s.a;
                vector_[wave.simd] = wave.clock;
                return true;
            case kMatrix:
                stall(wave, matrix_[wave.simd], kStallMatrix);
                matrix_[wave.simd] = wave.clock + s.a + rates_.matrix_gap;
                wave.clock += rates_.issue;
                return true;
            case kMemory: memory(wave, s); return true;
            case kWait:
                wave.clock += rates_.issue;
                wait(wave, wave.vm, s.a);
                wait(wave, wave.lgkm, s.b);
                return true;
            case kLds: {
                const double begin = std::max({wave.clock, lds_, wave.lds});
                lds_ = begin + std::max(1, s.a);
                wave.lds = begin + 2 * std::max(1, s.a);  // one wave gets half of the bandwidth
                enqueue(wave.lgkm, lds_ + rates_.lds_latency + rates_.lds_cycle_latency * s.a, kStallLds);
                wave.clock = begin + rates_.issue;
                return true;
            }
            case kConstant:
                wave.clock += rates_.issue;
                enqueue(wave.lgkm, wave.clock + (s.a ? rates_.l2_latency : rates_.scalar_latency), kStallScalar);
                return true;
            case kBarrier:
                group.at_barrier.push_back(&wave);
                open_barrier(group);
                return false;
            case kRelease: {
                const double clock = group.written[{s.a, s.b}] = wave.clock + rates_.lds_latency;
                for (Wave* other : group.looking[{s.a, s.b}]) {
                    stall(*other, clock, kStallFlag);
                    push(other);
                }
                group.looking.erase({s.a, s.b});
                return true;
            }
            case kAcquire: {
                const auto found = group.written.find({s.a, s.b});
                if (found == group.written.end()) {
                    group.looking[{s.a, s.b}].push_back(&wave);
                    return false;
                }
                stall(wave, found->second, kStallFlag);
                return true;
            }
            case kFill:
                // Of a load that returns later: what it takes of the bandwidth, taken at once.
                lds_ = std::max(lds_, wave.clock) + s.a;
                return true;
            default: wave.clock += s.a; return true;
        }
    }

    // Whether the wave was its workgroup's last.
    bool end(Wave& wave) {
        Group& group = *wave.group;
        --group.alive;
        group.latest_end = std::max(group.latest_end, wave.clock);
        out_.lived += wave.clock - wave.begin;
        open_barrier(group);
        return group.alive == 0;
    }

    const Rates& rates_;
    const Buffer* buffers_;
    Output& out_;
    double vector_[kSimds] = {}, matrix_[kSimds] = {};
    double lds_ = 0, l1_ = 0, l2_ = 0, fabric_ = 0, hbm_ = 0;
    int64_t order_ = 0, started_ = 0;
    std::priority_queue<Ready> ready_;
    std::vector<std::unique_ptr<Wave>> waves_;
};

}  // namespace

extern "C" void timeline_play(const int32_t* steps, const int64_t* ends, const int* waves_of, int kinds, int groups,
                              int resident, const double* buffers, const double* rates, double* out) {
    auto* const result = reinterpret_cast<Output*>(out);
    *result = {};
    Unit(*reinterpret_cast<const Rates*>(rates), reinterpret_cast<const Buffer*>(buffers), result)
        .run(reinterpret_cast<const Step*>(steps), ends, waves_of, kinds, groups, resident);
}
