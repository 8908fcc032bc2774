// C = A B^T for up to 32 rows on NVIDIA GPUs: the launcher.
//
// Bytes: n k of weights, read once; A (m k at most 512 KiB at k = 16384) comes from L2.
//
//   skinny_gemm_bulk.h          Hopper and later: the copy engine fills a ring in shared memory;  skinny_gemm_fours.h: its wide
//                               blocks' results
//   skinny_gemm_plain.h         the simple kernel: other chips, odd strides, small k
//   skinny_gemm_mma.h           matrix instructions and layouts;  skinny_gemm_finish.h: scales, bias, the result
//   skinny_gemm_cuda_config.h   which of them, with how many pieces of the columns and splits of K
//
// A decoding step is kernel after kernel, and each has to fill the memory's queues again: a launch, a ring's set-up and
// one latency, some 3 us here. Where the caller promises that b is constant, all of that and the first 80 KiB of weights
// a block happen while the kernel before ends, slot by slot, so as not to stand in its way.
//
// H200, microseconds a launch in a graph, m = 1 / 8 / 16 / 32 (2026-11-22; floor at 4.47 TB/s; benchmarks/cuda.py, version 27):
//   n x k           floor   b constant               b may change             torch._scaled_mm
//   2304 x 16384     8.4    9.7   9.8  10.1  11.2   11.1  11.2  11.7  12.1   15.5  15.7  15.8  15.6
//   4096 x 4096      3.8    4.6   4.6   4.9   5.8    5.7   5.7   6.0   6.8    7.2   7.1   7.2   7.2
//   13312 x 16384   48.8   47.8  47.7  48.9  51.7   50.9  51.0  52.0  54.6   56.1  53.0  54.0  55.5
//   16384 x 6656    24.4   24.2  24.6  25.1  26.7   26.3  26.6  27.2  28.7   27.4  27.4  27.7  28.6
//   28672 x 4096    26.3   26.3  27.1  27.3  28.7   27.9  28.7  29.3  31.5   30.8  29.4  30.0  31.0
//
// Versions, 16384 x 6656, m = 1 and 32 (b constant from 3 on; each step beside the one before in one run, from 5 on runs
// of another day, a few hundredths faster or slower as a whole):
//   1  four warps, 128 columns a block, K split over a cluster                27.0   34.2
//   2  eight warps of 32 columns and 64 k each; two blocks a multiprocessor   26.5   31.9
//   3  the first round of weights before the wait for the kernel before       24.7   29.4
//   4  the next kernel may start in the tail instead of at once               24.3   31.2 (4096 x 4096: 8.3 -> 6.6)
//   5  scales of A and the engine's description of A before they are needed   25.4 -> 25.3  31.2 -> 30.9 (4096 x 4096: 5.9 -> 5.7)
//   6  at once where no multiprocessor is idle; two slots more into L2        25.3 -> 24.7  30.8 -> 30.5 (13312 x 16384: 54.9 -> 51.8)
//   7  warps of all 64 columns and 32 k: fewer rows to widen; no ninth warp
//      where a thread needs registers; a slot is free once it is read         25.5 -> 24.6  31.3 -> 28.1 (with 5 and 6)
//   8  weights that may change go to L2 before the wait, with 9 rows or more  (b changing, m = 16, 32: 27.6, 29.7 -> 26.3, 27.9)
//   9  columns in even pieces, as many as there are places for blocks, not in full tiles: nothing here, where 256 tiles
//      nearly fill 264 places, but elsewhere (m = 1, 16, 32):
//        13312 x 16384   51.1  55.7  61.2 -> 50.0  51.3  58.2        5120 x 8192    12.8  13.5  14.3 -> 11.0  12.0  14.7
//        12288 x 4096    14.4  14.3  14.7 -> 11.8  12.7  14.9        3072 x 4096     5.2   5.7   6.4 ->  4.6   5.0   5.7
//        10240 x 8192    23.6  25.0  26.2 -> 19.3  20.4  26.9        1024 x 8192     5.8   6.4   7.4 ->  4.6   4.9   5.8
//  10  blocks of 24, 40, 48 and 56 columns beside 32 and 64, so that little is multiplied beyond a piece (m = 16, 32):
//        10240 x 8192    21.2  26.9 -> 20.1  22.7        18944 x 3584    19.4  26.3 -> 18.5  21.2
//        5120 x 5120      8.4   9.9 ->  7.7   9.4         4608 x 4096     7.2   8.5 ->  6.5   7.6
//      and more where a second of it at a time meets the chip's 700 W, at m = 32 with the clock at 1.4 to 1.6 GHz of 2.0:
//        13312 x 16384   51.4  65.3 -> 51.2  59.9        28672 x 4096    30.4  37.3 -> 30.3  34.7
//  11  of 80, 96 and 112 columns for up to 16 rows, where that makes one round of blocks instead of two (m = 1, 8, 16):
//        28672 x 4096    26.9  26.9  28.9 -> 26.2  26.6  28.3    18944 x 3584    17.4  17.0  18.4 -> 15.5  15.7  17.2
//        27648 x 5120    33.2  33.3  34.4 -> 31.9  32.4  34.1    22016 x 4096    21.5  21.3  22.7 -> 20.4  20.7  22.8
//  12  K split in four where it was in three or two, 16 to 19 columns a multiprocessor and a long K (m = 1, 16, 32):
//        2304 x 16384    10.6  11.6  13.0 -> 10.5  11.2  13.3    2400 x 16384    13.0  13.9  15.4 -> 10.8  11.7  13.8
//  13  where a multiprocessor has one block, the start of the next kernel by rows, bytes and K (m = 16, 32; a graph of it
//      replayed over and over; between other graphs, as in benchmarks/cuda.py, 4096 x 4096 gains less, 5.7 and 6.1):
//        4096 x 4096      5.8   6.2 ->  5.1   5.8     3584 x 3584    4.9   5.6 ->  4.5   5.1    5120 x 13824 20.5 -> 18.2
//        4096 x 3072      4.9   5.5 ->  4.4   4.8     2048 x 8192    6.5   7.1 ->  6.0   6.5    (m = 16; as it fell: 18 to 24)
//  14  the first round slot by slot, so that the kernel before has its last bytes soon (pick_overlap); the next kernel starts
//      in the tail then; blocks of a cluster say that they run without a fence (m = 1, 16, 32):
//        4096 x 4096      5.5   5.2   5.9 ->  4.5   5.0   5.7        3584 x 3584     4.8   4.5   5.2 ->  4.0   4.4   5.1
//        6144 x 4096      6.8   7.3   8.7 ->  6.3   6.6   8.4        4096 x 8192     9.2   9.3  10.3 ->  8.3   8.8  10.0
//        4096 x 14336    14.5  14.9  16.7 -> 13.8  14.4  16.1        5120 x 5120     7.4   7.9   9.3 ->  6.8   7.1   9.1
//        13312 x 16384   49.8  50.7       -> 48.8  50.0             28672 x 4096    26.6  28.8  33.9 -> 26.7  28.0  33.9
//        2304 x 16384    10.7  11.3  13.3 -> 10.4  10.9  13.0         512 x 16384    5.7   5.4   6.0 ->  4.6   5.1   5.9
//      (0.1 us slower where the ring holds all: 1024 x 4096 2.8, 3.0 -> 2.9, 3.1). The next kernel's start two steps earlier
//      gains 1 to 8 % more between other graphs: 4096 x 4096 4.7 5.2 5.9 -> 4.6 5.1 5.7, 6144 x 4096 6.9 7.2 8.2 -> 6.6 6.5 8.1
//  15  where the eight warps fill the ring, they do so before they multiply, not after (m = 32; 18944 x 3584: 16):
//        16384 x 6656    27.4 -> 26.8    2304 x 16384    12.9 -> 12.5    10240 x 8192    21.9 -> 21.3    18944 x 3584    16.5 -> 16.1
//  16  with more than 16 rows, a slot of the ring is left for after the wait, or the first round paced (m = 32):
//        16384 x 6656    26.6 -> 26.1    2304 x 16384    12.6 -> 12.3    12288 x 4096    14.4 -> 14.0    8192 x 3584      9.8 ->  9.1
//  17  blocks of up to 112 columns with more than 16 rows as well, by two groups of warps: half as many rounds of blocks,
//      half as many times all rows out of L2 (m = 32):
//        28672 x 4096    31.3 -> 28.0    18944 x 3584    20.1 -> 17.5    22016 x 4096    25.2 -> 22.4    27648 x 5120    37.1 -> 33.5
//        51200 x 5120    66.9 -> 61.6    57344 x 8192     112 ->  110    128256 x 4096    134 ->  124    37888 x 3584    35.9 -> 33.6
//  18  a fifth slot of 56 columns by 32 rows, in place of shared memory for a split of K that nobody makes there (m = 32):
//        13312 x 16384   54.6 -> 53.4    14336 x 4096    17.0 -> 16.4    13824 x 5120    19.6 -> 19.0
//  19  where K is long, one large block of sixteen warps a multiprocessor: the rows come, and are kept, once (m = 32):
//        13312 x 16384   53.5 -> 51.9    16384 x 16384   65.8 -> 63.0    16384 x 53248    216 ->  209    13312 x 24576    82 ->   81
//  20  shared memory aligned by the compiler, not by hand: a slot more for 80 columns by 8 and 32 rows, 96 by 32 and 56 by 16:
//        24576 x 4096    26.6 -> 26.1    20480 x 5120    28.3 -> 27.7    (m = 16:) 14336 x 4096 14.9 -> 14.6    13312 x 16384 52.5 -> 51.8
//  21  wide blocks of more than 16 rows: four columns of the result a thread, whole sectors at a time (m = 32):
//        28672 x 4096    29.1 -> 28.6    22016 x 4096    22.7 -> 22.2    24576 x 4096    25.3 -> 25.0    27648 x 5120    34.5 -> 34.1
//  22  a long K of few columns split in four over blocks of 80, alone on their multiprocessors, not over twice as many of 40
//      (m = 32; from 11.8 on with sums sent to the cluster four at a time, and added as they come at once):
//        2304 x 16384    12.3 -> 11.4    2400 x 16384    12.5 -> 11.7    2176 x 16384    12.3 -> 11.1    2304 x 24576    16.6 -> 16.0
//  23  where the compiler knows that one lane asks the copy engine (elected()), a copy is one instruction, not a loop (m = 8, 16, 32):
//        2560 x 8192     7.0   7.3   8.4 ->  6.4   6.7   8.2        5120 x 5120  7.2   7.5   9.0 ->  7.1   7.4   8.6
//        4096 x 4096     4.6   5.6   5.9 ->  4.4   5.3   5.9        4096 x 14336 14.6 15.6  17.1 -> 14.1  15.6  16.8
//        12288 x 4096               15.0 ->             14.3        (nothing where every place is taken; chips differ: some gain less)
//  24  then six slots go to L2 with 32 rows, where four did, and four with 16, where two did (m = 16, 32):
//        4096 x 4096     5.3   5.9 ->  5.2   5.7 (of three chips; on two others 5.7, 5.7)    3584 x 3584   4.3   5.1 ->  4.1   5.0
//        3584 x 18944         21.6 ->       21.1                                             4096 x 16384       19.9 ->       19.4
//  25  a cluster's sums are sent to the block that adds them, whose barrier counts their bytes, where they were stored, and a release
//      to the cluster waited for them; the next kernel of version 22's clusters starts two steps later (m = 8, 16, 32):
//        2304 x 16384   10.2  10.7  11.8 ->  9.8  10.2  11.2        2048 x 4096   3.4   3.5   4.6 ->  3.0   3.2   4.1
//        1024 x 8192     4.4   4.8   5.4 ->  4.1   4.3   5.1        1024 x 4096   3.0   3.1   3.9 ->  2.6   2.8   3.6
//  26  now that sums cost less: K in two parts from 6144 on where a block had all of it, and instead of four parts; the first round of
//      two parts paced; no more clusters than find room (m = 8, 16, 32):
//        2560 x 8192     6.3   6.6   8.1 ->  5.7   6.0   7.4        4096 x 8192   8.2  10.5       ->  7.6   8.5
//        3072 x 8192     7.0   7.7   8.5 ->  6.1   6.8   8.3        4096 x 14336 13.7  14.9       -> 13.2  14.0
//        2048 x 8192     5.8   5.4   6.3 ->  4.6   5.2   5.9        5120 x 13824 17.9             -> 16.4
//  27  chosen by a decoder layer's kernels together (benchmarks/gpu_layer.py; with rmsnorm_fp8.cu's version 8), no longer by a series of
//      one size alone: where K is long every place for a block is taken, by half of K or half of the columns each, and of the first
//      round two slots are under way at a time (m = 1, 8, 16, 32):
//        Llama 3.1 8B       62.3  62.5  65.0  76.6 -> 59.8  60.7  63.7  71.6       Qwen2.5 14B   75.4  76.4  78.9  90.0 -> 72.6  73.8  75.3  82.8
//        70B, one of eight  40.2  40.4  40.1  46.9 -> 37.9  37.7  38.8  45.6       405B         100.1 100.3 104.0 118.9 -> 98.8  99.5 105.1 118.3
//      (in a series 4096 x 14336 takes 14.6, 14.7, 15.1, 16.4 instead of 13.4, 13.6, 14.1, 16.3, but 5120 x 13824 19.2 instead of 20.3)
//
// Tried and dropped: stream-K over all multiprocessors with hand-over through memory (28.3, 37.9: its tail costs 2 us);
// wgmma with the rows widened once a block, by way of the copy engine (25.3, 35.6) or of registers (30.6, 39.7: one group
// of warps, in step with itself, waits at every slot); as many blocks as multiprocessors, all of one size (27.2, 33.6:
// eight warps alone on a multiprocessor take 0.46 us a slot at m = 32, as long as memory; at 4096 x 4096 no change); the
// rows' first chunks by loads instead of the copy engine (4096 x 4096: 5.4 -> 5.6, m = 32: 6.1 -> 8.3); the warp that is
// last out of a slot refills it, found by a counter (5 % slower than a barrier); blocks starting at different k (25.1,
// 32.7). wgmma again, a block of 124 columns a multiprocessor, two groups of four warps with the weights widened in
// registers, three warps that widen the rows into a second ring: 24.8, 27.5, and 49.1, 54.9 at 13312 x 16384, beside 24.0,
// 27.5 and 50.0, 57.0 of this kernel (widening, some 85 numbers a cycle and multiprocessor, is the same whoever
// multiplies, and the rows pass shared memory twice more). Where a block is alone on a multiprocessor (4096 x 4096): 16
// warps instead of 8 (5.4 -> 5.5; 32 rows need more registers), a slot loaded ahead (5.5), three blocks' places a
// multiprocessor instead of two (5.3 to 5.5; 2304 x 16384: 10.6 -> 10.8).
// For m = 32 beside version 12: one block of 80 to 112 columns a multiprocessor, with all its registers and a slot loaded
// ahead (13312 x 16384 54.5 -> 54.0, 28672 x 4096 32.6 -> 33.2, 10240 x 8192 22.8 -> 22.5); blocks that stay for all their
// pieces, the ring filled with the next while one is finished (28672 x 4096 32.4 -> 32.1, 57344 x 8192 116 -> 118).
// wgmma in FP8 from shared memory, each 32 k's sum added in float32, in the order 2304 x 16384, 4096 x 4096, 13312 x 16384,
// 16384 x 6656, 28672 x 4096 of m = 32: 12.5, 7.2, 51.7, 26.0, 29.7 beside 13.1, 5.9, 52.2, 26.9, 31.5 of version 13. It drops what
// lies 2^13 below the largest product of the 32, against the bound of docs/numerics.md, for 1 to 6 %.
// Where a block is alone: the last slots held in registers from the start (4096 x 4096 5.5 -> 5.6 to 6.0), the first rows
// by asynchronous loads (m = 1: no change, 32: 5.9 -> 6.4). Two blocks with half of K each, for m = 32, so that 16 warps
// multiply (5.9 -> 7.4 to 8.3: the next kernel finds no place).
// Beside versions 15 to 17: a slot filled again in the step that empties it (28672 x 4096, m = 32: 31.8 -> 32.9 to 33.2: the
// other warps are not done); the first round paced by the clock (as good as version 16), by barriers (27.1 -> 28.5 at
// 16384 x 6656: no registers); the first slots of the next round of blocks fetched to L2 (before version 17 31.6 -> 31.0, at
// 57344 x 8192 nothing); version 17's blocks with up to 8 rows, too, for the same bits (18944 x 3584: 15.6 -> 17.4); no
// divisions before a block's first copy (nothing, and 4096 x 4096 4.6 -> 5.6: the next kernel's start would have to be found
// anew); the sums of a thread's rows unrolled (2304 x 16384: 12.3 -> 12.5); 256 bytes at a time into L2, as the copy engine's
// descriptions allow (5 to 8 % slower).
// For m = 32, beside version 17: a ring of their own, of three slots, for the rows, and more slots for the weights (28672 x 4096
// 29.5 -> 31.9, 10240 x 8192 21.8 -> 24.1: the copy engine takes what it is asked for in turn, so the rows wait behind
// weights that were asked for far ahead; with rings of one length nothing changes); nine slots of half the k for 64 columns, by
// two groups of warps (16384 x 6656 28.1 -> 28.1); sixteen warps in two groups of 16 columns (4096 x 4096 5.8 -> 6.2, 8192 x
// 3584 9.3 -> 9.8: the rows are widened twice; with 48 columns and no warps that fill and pace, 5120 x 8192 13.1 -> 14.1); a
// cluster of two that shares the rows' copies (13312 x 16384 54.6 -> 54.3, all others 1 to 7 % slower; with arrivals that
// release to the cluster, each a fence, 85); half a slot read ahead of the multiplication (4096 x 4096 5.8 -> 5.9; the next slot
// as well, m = 16: 5.7 -> 5.6, and a way to hang); no sums over the warps at all, as a bound: 0.05 us of 4096 x 4096, 0.2 of
// 28672 x 4096, 0.5 of 13312 x 16384.
// For m = 32, beside version 18: large blocks at shorter K, whose next kernel finds no place before they end (16384 x 6656 26.9
// -> 27.7, 8192 x 8192 18.8 -> 20.5, 28672 x 4096 in 217 columns 29.4 -> 30.4); no instructions for eight columns that a large
// block does not have (13312 x 16384: nothing); K split over clusters of two for 112 and 128 columns (13312 x 16384 54.3 -> 57.0,
// 16384 x 6656 27.3 -> 31.8) and of eight for 80 (2304 x 16384 12.54 -> 12.57); a warp's rows by asynchronous loads of 16 bytes
// into a ring of its own, two or three steps ahead, and six slots for weights (16384 x 6656 26.6 -> 33.9: memory's queues, which
// the weights keep full, delay them as well); blocks starting at different k (13312 x 16384 54.0 -> 57.0, 4096 x 4096 5.8 -> 6.1:
// what many read at a time costs L2 less); A or B in rows that are 128 or 256 bytes longer (nothing, so it is no matter of
// strides that are powers of two); wgmma, two blocks a multiprocessor, each of two teams of four warps that widen the weights in
// registers and the rows into shared memory (16384 x 6656 28.2 -> 29.2, 13312 x 16384 56.6 -> 63.6; rows widened by warps of their
// own: 32.3; at one clock as many cycles as this kernel, 47 and 48 thousand: a step waits for the fence between the rows' writes
// and the instruction that reads them).
// For m = 32, beside version 20. 4096 x 4096 (5.9): wgmma in float16, 128 columns by a quarter of K in clusters of four, rows
// widened into shared memory by the warps that multiply: 9.7 (of 32 such clusters two share multiprocessors; each step waits for
// the widened rows; with rows by loads from L2, for which the fence before wgmma waits, 16); K split in two over 66 clusters of 64
// columns: 6.9 to 8.3. The results: four columns a thread for narrower blocks, too (16384 x 6656 26.5 -> 27.1, 4096 x 4096 5.9 ->
// 6.3); the sums of 4, 8 or 16 rows before the first of them is written (28672 x 4096 +0.4, 4096 x 4096 +0.0, 0.2, 0.7: code that
// runs once has to be short); a column a thread, but from a sector's start on (nothing); kept in L2, or to leave it first (nothing).
// The two blocks of a multiprocessor with up to 8 columns more and less, to end apart (nothing). Beside version 22: in clusters of
// two (12.8 to 13.4) and of three (17: 39 of the 42 find room); a slot read ahead of the multiplication (11.8 -> 12.5); warps that
// fill and pace (11.8 to 12.2); an eighth slot where the sums take the ring's place, which costs a trip round the cluster (12.0);
// with 16 rows or fewer (10.8 -> 12.0).
// Beside version 26, m = 32. 4096 x 4096 (5.7 to 5.9): twelve warps of all 32 columns, by slots of 384 k (6.2 to 6.5) or chunk by
// chunk in turn (7.4); sixteen, of 64 registers, by four bytes a lane (7.0); slots of 256 k (6.0); 128 full tiles (1 % less; four
// multiprocessors would be idle, of which each may get two blocks of the next kernel); 64 columns by half of K in clusters of two
// (6.4; 4096 x 14336 2 % slower). The first copies of a kernel by an elected lane, too: they come at once then, in the way of the
// kernel before (4096 x 3072 4.9 -> 6.0). 2304 x 16384: a first round paced by a warp that multiplies or by a ninth one (11.6 -> 12.3
// to 12.5). 28672 x 4096 in 256 full tiles, or with more or fewer slots ahead (nothing). K in two parts for 93 columns and more a
// block (m = 16: 12 to 28 % slower; m = 8: as fast, or 4 % faster).
//
// What is left. From the end of a kernel to the end of the next one's wait it takes 0.8 to 1.1 us (2 to 2.7 where the next one
// has asked for 220 KiB a multiprocessor meanwhile), to its first rows 0.6 more; at m = 1 it ends 0.25 us after its last sum
// (m = 32: 0.6 to 1.5). Between that memory is busy: at 13312 x 16384 and m = 32 the counters say 95 to 98 %, without rows
// 99. m = 32: all copies and not one multiplication are 5.3, 50.3 and 24.8 us at 4096 x 4096, 13312 x 16384 and 16384 x 6656,
// all but the rows' copies 5.8, 49.6 and 25.6. Of 28672 x 4096 the result's 1.8 MB cost 1.5 us before version 21 (m = 1: 0.1), as
// much where each block's lie in one piece, 0.5 where it is the same memory in every launch. 4096 x 4096 waits for its eight
// warps, which widen and multiply for 3.4 us: the matrix instruction takes a scheduler some 10 cycles with two warps and 7.5 with
// eight, beside its two conversions 10.5 and 9.3 (a loop of nothing else), so 2.9 us of the 3.4. 2304 x 16384, before version
// 25: from the wait's end 0.6 us to the first slot, 8.0 of multiplication at 11 cycles each, 0.3 for sums over warps, 0.9 over the
// cluster, whose blocks end 0.7 apart, 0.5 for results; 1.5 to the end of the next wait. And 13312 x 16384 needs power: beside what the idle
// chip takes (124 W), 27 mJ at m = 1 and 41 at m = 32, a third of them for the multiplications; the 700 W allowed are 29 in
// 50 us. After a tenth of a second of nothing else the clock is at 1.35 GHz instead of 1.8, and m = 32 takes 56 to 57 us
// instead of 53 (before version 19; with it the clock is at 1.45 GHz, and it takes 53 to 54 instead of 52).
#include <cudaTypedefs.h>

#include <atomic>

#include "../../common/cuda/device.h"
#include "bulk.h"
#include "config.h"
#include "../../common/gemm/forced.h"
#include "plain.h"

namespace rocm_fp8::skinny_gemm::cuda {
namespace {

// Makes the description of a matrix [rows, k] of bytes by which the copy engine takes tiles of kRowBytes by `height`; false
// where it takes none (an overlapping layout, a driver older than CUDA 12).
bool describe(CUtensorMap* map, const void* data, int64_t rows, int64_t k, int64_t stride, int height) {
    static const auto encode = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found{};
        const cudaError_t code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
        return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(code == cudaSuccess ? function : nullptr);
    }();
    if (!encode) return false;
    const cuuint64_t size[] = {cuuint64_t(k), cuuint64_t(rows)}, strides[] = {cuuint64_t(stride)};
    const cuuint32_t box[] = {kRowBytes, cuuint32_t(height)}, element_strides[] = {1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), size, strides, box, element_strides,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

using BulkKernel = void (*)(Args, CUtensorMap, CUtensorMap, Pieces, Overlap);

struct BulkChoice {
    BulkKernel kernel;
    int threads, most_threads, shared_bytes, rows;
    std::atomic<uint64_t>* allowed;  // the devices, a bit each, on which the kernel may have that much shared memory
};

template <int shape, int row_tiles>
BulkChoice bulk_choice() {
    constexpr BulkShape s = kBulkShapes[shape];
    constexpr int kSlots = s.slots(row_tiles * kMmaNarrow);
    if constexpr (kSlots > 0) {
        using B = Bulk<s.columns, row_tiles, kSlots, s.warps, s.clusters>;
        constexpr int kSharedBytes = int(sizeof(typename B::Shared));
        // Of a multiprocessor, and what each block takes beside its own.
        constexpr int kAllShared = 228 << 10, kReserved = 1 << 10;
        static_assert(s.blocks() * (kSharedBytes + kReserved) <= kAllShared);
        static_assert(!B::kSplits || B::shares_fit());
        static std::atomic<uint64_t> allowed;
        const BulkKernel kernel = skinny_gemm_bulk<s.columns, row_tiles, kSlots, s.warps, s.clusters>;
        return {kernel, B::kThreads, B::kMostThreads, kSharedBytes, B::kRows, &allowed};
    } else {
        return {};  // there is no such form
    }
}

template <int index = 0>
BulkChoice bulk_kernel(int shape, int64_t m) {
    if constexpr (index < kBulkShapeCount) {
        if (shape != index) return bulk_kernel<index + 1>(shape, m);
        return m <= 8 ? bulk_choice<index, 1>() : m <= 16 ? bulk_choice<index, 2>() : bulk_choice<index, 4>();
    } else {
        return {};
    }
}

template <bool aligned>
void (*plain_kernel(int64_t m))(Args) {
    return m <= 8 ? skinny_gemm_plain<1, aligned> : m <= 16 ? skinny_gemm_plain<2, aligned> : skinny_gemm_plain<4, aligned>;
}

Status launch_plain(const Args& a, const Chip& chip, bool aligned, const Executor& on) {
    const int64_t blocks = (a.n + kMmaWide - 1) / kMmaWide;
    return launch_kernel(aligned ? plain_kernel<true>(a.m) : plain_kernel<false>(a.m), chip, {blocks, kPlainWarps * kWarp}, on, a);
}

Status launch_bulk(const Args& a, const Chip& chip, const Config& config, const Executor& on) {
    const BulkChoice choice = bulk_kernel(config.shape, a.m);
    const Pieces pieces(a.n, config.pieces);
    CUtensorMap weights, rows;
    if (!describe(&weights, a.b, a.n, a.k, a.b_stride, pieces.most_columns()) ||
        !describe(&rows, a.a, a.m, a.k, a.a_stride, choice.rows)) {
        return launch_plain(a, chip, true, on);
    }
    const uint64_t device = chip.device < 64 ? uint64_t(1) << chip.device : 0;
    if (!(choice.allowed->load(std::memory_order_relaxed) & device)) {
        const cudaError_t code =
            cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, choice.shared_bytes);
        if (code != cudaSuccess) return {cudaGetErrorString(code)};
        choice.allowed->fetch_or(device, std::memory_order_relaxed);
    }
    const Overlap overlap = pick_overlap(config, a.m, a.n, a.k, chip.multiprocessors, a.constant_b);
    const int threads = overlap.window ? choice.most_threads : choice.threads;
    const Grid grid{int64_t(pieces.count) * config.splits, threads, config.splits, choice.shared_bytes};
    return launch_kernel(choice.kernel, chip, grid, on, a, weights, rows, pieces, overlap);
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::cuda

namespace rocm_fp8::skinny_gemm {

Status launch(const Args& args, const Executor& on) {
    using namespace cuda;
    if (args.m == 0 || args.n == 0) return {};
    if (args.m > kMaxRows) return {"a has more rows than one launch takes"};
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    if (args.format != DType::e4m3fn) return {"a: dtype float8_e4m3fnuz; NVIDIA GPUs multiply float8_e4m3fn"};
    const bool aligned = args.k % kChunk == 0 && rows_aligned(args.a, args.a_stride) && rows_aligned(args.b, args.b_stride);
    Config config = pick_config(args.m, args.n, args.k, chip.multiprocessors, aligned && chip.hopper());
    ForcedConfig forced;
    if (const Status s = read_forced_config(kBulkShapeCount, kMaxClusterSplits, true, &forced); !s.ok()) return s;
    if (forced.set) {
        int pieces = 0;
        if (forced.shape != kPlain) {
            const BulkShape shape = kBulkShapes[forced.shape];
            const int fewest = fewest_pieces(shape.columns, args.n);
            pieces = forced.pieces ? forced.pieces : fewest;
            const bool fits = shape.slots(args.m) && (forced.splits == 1 || shape.splits(args.m));
            if (config.shape == kPlain || !fits || pieces < fewest || pieces > args.n) {
                return {"ROCM_FP8_KERNELS_GEMM names a shape that cannot take these arguments, or too few or too many pieces"};
            }
        }
        config = {forced.shape, forced.splits, pieces};
    }
    return config.shape == kPlain ? launch_plain(args, chip, aligned, on) : launch_bulk(args, chip, config, on);
}

}  // namespace rocm_fp8::skinny_gemm
