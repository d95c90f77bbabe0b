"""Hypothesis strategies for JSON."""

from hypothesis import strategies as st

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
"""Any value, nested a little."""

JSON_OBJECTS = st.dictionaries(st.text(), JSON_VALUES, max_size=3)
