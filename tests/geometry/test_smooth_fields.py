"""Motion of a whole frame, from what is known at some places."""

import torch

from protoformer.geometry.motion_fields import cell_terms, evaluate_fields, fit_fields


def quadratic() -> tuple[torch.Tensor, torch.Tensor]:
    """Coefficients, 2 x 3 x 6 x 2, and their fields over 8 x 12 cells."""
    coefficients = 5 * torch.randn(2, 3, 6, 2, generator=torch.Generator().manual_seed(0))
    return coefficients, evaluate_fields(coefficients, cell_terms(8, 12))


def test_terms_are_those_of_places_from_minus_one_to_one() -> None:
    terms = cell_terms(2, 4)
    assert terms[:, 0, 3].tolist() == [1, 0.75, -0.5, 0.5625, -0.375, 0.25]


def test_a_quadratic_field_is_found_again() -> None:
    coefficients, fields = quadratic()
    result = fit_fields(fields, torch.ones(2, 3, 1, 8, 12))
    assert (result.coefficients - coefficients).abs().max() < 0.25  # a ridge holds the higher terms back a little
    assert (evaluate_fields(result.coefficients, cell_terms(8, 12)) - fields).abs().max() < 0.3
    assert result.weights.min() > 0.8


def test_it_goes_on_where_nothing_is_known() -> None:
    _, fields = quadratic()
    affine = evaluate_fields(torch.tensor([[4.0, -2.0], [3.0, 1.0], [0.5, 2.0]]), cell_terms(8, 12)).expand_as(fields)
    confidence = torch.zeros(2, 3, 1, 8, 12)
    confidence[..., 2:7] = 1
    result = fit_fields(torch.where(confidence > 0, affine, 0.0), confidence)
    assert (evaluate_fields(result.coefficients, cell_terms(8, 12)) - affine).abs().max() < 0.2


def test_what_goes_its_own_way_is_not_believed() -> None:
    shift = torch.full((1, 1, 2, 8, 12), 3.0)
    places = shift.clone()
    places[..., 2:5, 3:7] += 12
    result = fit_fields(places, torch.ones(1, 1, 1, 8, 12))
    assert result.weights[..., 2:5, 3:7].max() < 0.1 < result.weights[..., 6:, :].min()
    assert (evaluate_fields(result.coefficients, cell_terms(8, 12)) - shift).abs().max() < 1.0


def test_nothing_known_is_no_motion() -> None:
    result = fit_fields(torch.zeros(1, 2, 2, 8, 12), torch.zeros(1, 2, 1, 8, 12))
    assert result.coefficients.abs().max() == 0 and result.weights.max() == 0
