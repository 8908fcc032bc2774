"""Two workers compute what one does."""

import pytest

from .conftest import generate, greedy, text


@pytest.mark.parametrize("name", ["static", "dynamic"])
def test_two_workers_decode_the_tokens_of_one(name, engine):
    """Up to the first token that one worker finds hardly likelier than another: after it the texts differ for good.

    Two workers' bfloat16 results are added, and each has scales of its own part of a row: the logarithms of tokens'
    likelihoods move by 0.1 (standard deviation).
    """
    code = text(1, 2048)[0].tolist()
    prompts = [code[at : at + 40] for at in range(0, 1600, 200)]
    alone = engine(name, enforce_eager=True)
    outputs = alone.generate([{"prompt_token_ids": p} for p in prompts], greedy(24, logprobs=2), use_tqdm=False)
    both = generate(engine(name, enforce_eager=True, tensor_parallel_size=2), prompts, 24)
    compared = 0
    for output, tokens in zip(outputs, both):
        for token, expected, likely in zip(tokens, output.outputs[0].token_ids, output.outputs[0].logprobs):
            first, second = sorted((each.logprob for each in likely.values()), reverse=True)[:2]
            if token != expected:
                assert first - second < 0.5, (token, expected, likely)
                break
            compared += 1
    assert compared >= 0.8 * len(prompts) * 24
