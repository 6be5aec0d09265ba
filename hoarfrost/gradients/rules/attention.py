from hoarfrost.gradients.rules.fallback import FallbackRule


class AttentionRule(FallbackRule):
    pass
