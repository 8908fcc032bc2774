"""Tensors that are rows only after some thought."""

# A single row; leading ones; a batch; a transposed batch, whose leading dimensions have no common stride; one row seen
# many times.
VIEWS = {
    "row": lambda x: x[0, 0],
    "one": lambda x: x[:1, :1],
    "batch": lambda x: x,
    "four-dims": lambda x: x.unflatten(1, (5, 1)),
    "transposed": lambda x: x.transpose(0, 1),
    "sliced": lambda x: x[:, 1::2],
    "columns": lambda x: x[..., 8:-8],
    "odd-columns": lambda x: x[..., 7:-7],
    "expanded": lambda x: x[1:2, 2:3].expand(4, 6, -1),
}
