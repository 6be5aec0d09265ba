from hoarfrost.gradients.rules.fallback import FallbackRule


class RecurrentRule(FallbackRule):
    pass
