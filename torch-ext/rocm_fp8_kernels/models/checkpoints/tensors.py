"""The tensors of a checkpoint's safetensors files, by name: one file, or several with an index."""

import json
from pathlib import Path

import torch

__all__ = ["Tensors", "read_json"]

_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}


def read_json(file: Path) -> dict:
    """Raises: FileNotFoundError, or ValueError that names the file."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{file}: not an object")
    return value


class Tensors:
    """All files are opened, and their headers read, before a tensor is."""

    def __init__(self, directory: Path, device: torch.device):
        """Raises: FileNotFoundError or ValueError that names the file."""
        from safetensors import SafetensorError, safe_open

        self._directory = directory
        self._file_of: dict[str, object] = {}
        self._stored: dict[str, str] = {}  # new name -> that in the files
        index = directory / _INDEX
        wanted = read_json(index).get("weight_map") if index.is_file() else None
        if index.is_file() and not (isinstance(wanted, dict) and all(map(_is_file_name, wanted.values()))):
            raise ValueError(f"{index}: no weight_map of names of files in this folder")
        for name in sorted(set(wanted.values())) if wanted is not None else [_FILE]:
            path = directory / name
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such file")
            try:
                file = safe_open(path, framework="pt", device=str(device))
            except SafetensorError as error:
                raise ValueError(f"{path}: {error}") from None
            held = file.keys()
            for key in held:  # of several files that hold a tensor the index names the one that counts
                if key not in self._file_of or wanted.get(key) == name:
                    self._file_of[key] = file
        missing = sorted(set(wanted or ()) - self._file_of.keys())
        if missing:
            raise ValueError(f"{index}: {missing[0]} is not in {wanted[missing[0]]}")

    def names(self) -> set[str]:
        return set(self._file_of)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def rename(self, names: dict[str, str]) -> None:
        """names: those of the files -> what they are called from here on. Raises: ValueError where one is taken."""
        for old, new in names.items():
            if new in self._file_of:
                raise ValueError(f"{self._directory}: {old} and {new} are one tensor in the model")
            self._file_of[new], self._stored[new] = self._file_of.pop(old), old

    def check(self, name: str, shapes: list[tuple[int, ...]], dtypes: tuple[torch.dtype, ...]) -> None:
        """Raises: ValueError that names the tensor where it is not there, or has none of these shapes or dtypes."""
        if name not in self._file_of:
            raise ValueError(f"{self._directory}: no tensor {name}")
        header, name = self._header(name), self._stored.get(name, name)
        dtype, shape = header.get_dtype(), tuple(header.get_shape())
        if _DTYPES.get(dtype) not in dtypes:
            allowed = ", ".join(key for key, value in _DTYPES.items() if value in dtypes)
            raise ValueError(f"{self._directory}: {name}: dtype {dtype}; needs {allowed}")
        if shape not in shapes:
            raise ValueError(f"{self._directory}: {name}: shape {list(shape)}; needs {list(shapes[0])}")

    def dtype(self, name: str) -> torch.dtype | None:
        return _DTYPES.get(self._header(name).get_dtype()) if name in self._file_of else None

    def read(self, name: str) -> torch.Tensor:
        return self._file_of[name].get_tensor(self._stored.get(name, name))

    def _header(self, name: str):
        return self._file_of[name].get_slice(self._stored.get(name, name))


def _is_file_name(name) -> bool:
    return isinstance(name, str) and name == Path(name).name
