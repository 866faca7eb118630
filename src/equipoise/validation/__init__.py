"""Whatever comes from outside, checked at the edge: names, YAML, code that a configuration names, arrays; and texts made safe to show."""
