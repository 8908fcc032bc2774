"""What a launch did: counted always, or watched on request. Knows instructions, not who runs them."""
