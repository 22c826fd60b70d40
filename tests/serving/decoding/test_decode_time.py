"""The processor time of a request is shared by its pictures."""

from serving.decoding.process import DecodeTime


def test_the_time_left_is_shared_by_the_steps_that_run():
    time, clock_s = DecodeTime(6.0), [10.0, 20.0]
    with time.step(lambda: clock_s[0]):
        assert (time.left_s, time.lasts_s) == (6, 6)
        with time.step(lambda: clock_s[1]):
            assert (time.left_s, time.lasts_s) == (6, 3)
            clock_s[:] = [11.0, 21.0]
            assert (time.left_s, time.lasts_s) == (4, 2)
            clock_s[1] = 26.0
            assert (time.left_s, time.lasts_s) == (-1, 0)
    assert (time.left_s, time.lasts_s) == (-1, 0)
