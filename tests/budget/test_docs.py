from hoarfrost import budget


def test_every_public_name_has_documentation_and_what_promises_privacy_says_what_it_guarantees():
    for name in ("Event", "Gaussian", "Readout", "Statement", "epsilon", "noise_multiplier", "steps"):
        documentation = getattr(budget, name).__doc__
        assert documentation
        assert not documentation.startswith(f"{name}(")  # what a dataclass says of itself if nobody else does
    for promise in (budget.epsilon, budget.noise_multiplier, budget.steps, budget.Readout):
        assert "Guarantees:" in promise.__doc__
