import numpy as np
import pytest

from kareus.model.surrogate import fit_surface, most_promising


def kinked(settings):
    """Two thread-block counts' worth of a span: bound by the collective on the left, by compute beyond."""
    return np.maximum(10.0 / np.exp(settings[:, 0]), 2.0 + 0.1 * settings[:, 1])


GRID = np.array([[np.log(blocks), place] for blocks in range(1, 21) for place in range(6)])


def test_surface_predicts_what_it_has_not_seen():
    rows = np.random.default_rng(0).permutation(len(GRID))
    mean, _ = fit_surface(GRID[rows[:30]], kinked(GRID[rows[:30]])).predict(GRID[rows[30:]])
    error = np.abs(np.exp(mean) / kinked(GRID[rows[30:]]) - 1)
    assert np.median(error) < 0.02


def test_surface_is_surest_where_it_was_measured():
    seen = GRID[::7]
    surface = fit_surface(seen, kinked(seen))
    _, deviation = surface.predict(GRID)
    assert deviation[::7].max() < np.delete(deviation, np.s_[::7]).max()
    assert np.argmax(deviation) % 7 != 0


def test_search_finds_the_best_in_a_quarter_of_the_settings():
    response = kinked(GRID)
    seen = list(np.random.default_rng(1).choice(len(GRID), 8, replace=False))
    bounds = GRID.min(axis=0), GRID.max(axis=0)
    while len(seen) < 30:
        surface = fit_surface(GRID[seen], response[seen], bounds=bounds)
        rest = np.setdiff1d(np.arange(len(GRID)), seen)
        seen.append(int(rest[most_promising(surface, GRID[rest], response[seen].min())]))
    assert response[seen].min() <= 1.01 * response.min()


def test_a_column_that_never_varies_is_harmless():
    settings = np.column_stack([GRID, np.full(len(GRID), 3.0)])
    mean, deviation = fit_surface(settings[::5], kinked(settings[::5])).predict(settings)
    assert np.isfinite(mean).all()
    assert np.isfinite(deviation).all()


@pytest.mark.parametrize("response", [np.array([1.0]), np.array([1.0, 0.0])])
def test_what_cannot_be_fitted_is_refused(response):
    with pytest.raises(ValueError, match="positive responses"):
        fit_surface(GRID[: len(response)], response)
