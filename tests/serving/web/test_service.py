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
await identify([file], args[0], during);
return sent[0];
"""


@from_table
def test_a_request_has_every_name_of_the_choice_and_what_the_page_wishes(page, wish, sent):
    assert page.evaluate(SENT, wish) == list(sent)


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
