// What stands between the matrix instructions of a stage: a table, without HIP in it, so that it can be tested anywhere.
//
// A stage has `steps` steps of `instructions` matrix instructions. A step has accesses, in this order: `reads` reads of the
// fragments that are multiplied next, then its share of the stage's `loads` moves. A move stores a piece of a later stage
// to LDS, and asks for the piece that comes to its registers next. A step's accesses are spread evenly over its
// instructions.
//
//     deep      a whole stage of fragments is read ahead: the barrier stands before the stage, and all steps have moves
//     not deep  a step is read ahead: the barrier stands before the last step, which reads of the next stage. So moves
//               come before it, unless there is no other step
#pragma once

namespace rocm_fp8::gemm {

template <int steps, int instructions, int reads, int loads, bool deep>
struct Schedule {
    static constexpr int kMovingSteps = deep || steps == 1 ? steps : steps - 1;
    int first_move[steps + 1] = {};              // of a step; behind the last one: loads
    int accesses[steps][instructions + 1] = {};  // of a step: the first that stands before an instruction

    constexpr Schedule() {
        for (int s = 0; s <= steps; ++s) first_move[s] = s < kMovingSteps ? loads * s / kMovingSteps : loads;
        for (int s = 0; s < steps; ++s) {
            const int all = reads + first_move[s + 1] - first_move[s];
            for (int i = 0; i <= instructions; ++i) accesses[s][i] = all * i / instructions;
        }
    }

    // Whether each access stands before one instruction of its step, each move belongs to one step, and none stands
    // behind the barrier of a stage that is not deep.
    constexpr bool complete() const {
        int moves = 0;
        for (int s = 0; s < steps; ++s) {
            const int of_step = accesses[s][instructions] - reads;
            if (accesses[s][0] != 0 || first_move[s] != moves || of_step < 0) return false;
            for (int i = 0; i < instructions; ++i) {
                if (accesses[s][i] > accesses[s][i + 1]) return false;
            }
            if (!deep && steps > 1 && s == steps - 1 && of_step != 0) return false;
            moves += of_step;
        }
        return moves == loads && first_move[steps] == loads;
    }
};

}  // namespace rocm_fp8::gemm
