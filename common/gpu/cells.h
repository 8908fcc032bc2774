// Cells of a matrix for a grid whose threads step over them, row after row: no division a cell, any sizes.
#pragma once

#include "../divider.h"

namespace rocm_fp8 {
namespace {

struct Cells {
    int64_t columns;
    Divider of_first;      // a thread's first cell: threads are fewer than 2^31
    int64_t down, across;  // a step
};
inline Cells cells_of(int64_t columns, int64_t threads) {
    constexpr int64_t kMost = (int64_t(1) << 31) - 1;
    return {columns, divider_by(uint32_t(columns < kMost ? columns : kMost)), threads / columns, threads % columns};
}

// body(row, column) for each cell of this thread, the thread-th of all.
template <class Body>
__device__ inline void each_cell(const Cells& cells, int64_t rows, uint32_t thread, const Body& body) {
    int64_t row = divide(thread, cells.of_first), column = thread - row * cells.of_first.divisor;
    while (row < rows) {
        body(row, column);
        row += cells.down, column += cells.across;
        if (column >= cells.columns) column -= cells.columns, ++row;
    }
}

}  // namespace
}  // namespace rocm_fp8
