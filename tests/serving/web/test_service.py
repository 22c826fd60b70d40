"""What the page asks the service for, and what it does with the key."""

from tests.make import from_table

SENT = """
const sent = [];
globalThis.answerTo = (form) => {
  sent.push([...form].map(([name, value]) => [name, value.name ?? value]));
  return {};
};
const { identify } = await load("service.js");
const file = new File(["pixels"], "1.jpg");
const during = { signal: new AbortController().signal, onSent() {} };
for (const wish of args[0]) await identify([file], wish, during);
return sent;
"""


def test_a_request_has_every_name_of_the_choice_and_what_the_page_wishes(page):
    wishes = [
        {"coverage": 0.9, "taxa": ["Rosa", "Bellis perennis"], "where": {"latitude": -33.9, "longitude": 151.2}},
        {"coverage": None, "taxa": [], "preview": True},
    ]
    assert page.evaluate(SENT, wishes) == [
        [["latitude", "-33.9"], ["longitude", "151.2"], ["lang", "en"], ["coverage", "0.9"], ["taxa", "Rosa"],
         ["taxa", "Bellis perennis"], ["image", "1.jpg"]],
        [["lang", "en"], ["preview", "true"], ["image", "1.jpg"]],
    ]  # fmt: skip


REFUSED = """
const [before, during] = args;
const { readKey, storeKey } = await load("key.js");
const { loadModel } = await load("service.js");
const asked = [];
globalThis.fetch = async (address, { headers }) => {
  asked.push(address, headers.Authorization ?? null);
  storeKey(during);
  return Response.json({}, { status: 401 });
};
const brought = [readKey(), location.href];
storeKey(before);
const problem = await loadModel().catch((error) => error);
return [readKey(), problem.needsKey, ...asked, ...brought];
"""


@from_table
def test_a_key_that_was_refused_is_forgotten_and_no_other_one(fresh_page, before, during, after, sent):
    kept, needs_key, address, header, *brought = fresh_page.evaluate(REFUSED, before, during)
    assert (kept, needs_key, header) == (after, True, sent)
    assert brought == ["of-a-class", "https://plants.example/?lang=en"]  # of a link, see driver.mjs
    assert address.endswith("/serving/model")  # the modules stand in /serving/web here
