"""Programs that several of the Hub's tests run as a user's."""

from scripts.load import REPO_ID

# Prints where the kernel lies, after it has computed something that is known.
USE = """
import torch
x = torch.tensor([[3.0, 4.0]], dtype=torch.bfloat16)
y = kernel.rms_norm(x, torch.ones(2, dtype=torch.bfloat16), 0.0)
assert torch.equal(y, kernel.reference.rms_norm(x, torch.ones(2, dtype=torch.bfloat16), 0.0)) and y.abs().sum() > 1
print(kernel.__file__)
"""
GET = f"from kernels import get_kernel\nkernel = get_kernel('{REPO_ID}', backend='cpu', {{}})\n" + USE
