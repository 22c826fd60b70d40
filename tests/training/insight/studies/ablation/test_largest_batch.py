import pytest

from models.errors import RecipeError
from training.insight.studies.ablation.largest_batch import largest_batch


@pytest.mark.parametrize("memory", [4, 5, 12, 13, 50, 127])
def test_both_ends_of_the_largest_batch_were_tried_and_lie_together(memory):
    tried = {}
    limit = largest_batch(lambda size: tried.setdefault(size, size <= memory))
    assert (tried[limit.fits], tried[limit.fails]) == (True, False)
    assert limit.fails - limit.fits <= 2


def test_a_card_without_end_or_beginning_is_told():
    assert largest_batch(lambda size: False).fits == 0
    with pytest.raises(RecipeError, match="lower --memory-gb"):
        largest_batch(lambda size: True)
