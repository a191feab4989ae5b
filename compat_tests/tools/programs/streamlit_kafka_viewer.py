"""`PAGE CONFIG TOPIC`: opens the page without a browser, takes the topic, loads its messages from the beginning, and prints as JSON
what it shows."""

from __future__ import annotations

import json
import sys

from streamlit.testing.v1 import AppTest  # type: ignore[import-not-found]

page, config, topic = sys.argv[1:]
sys.argv = [page, "--config", config]
app = AppTest.from_file(page, default_timeout=60).run()
topics = app.selectbox[0].options
app.selectbox[0].set_value(topic).run()
app.radio[0].set_value("From beginning").run()
button = next(each for each in app.button if each.label == "Load Messages")
button.click().run()
shown = {
    "topics": topics,
    "metrics": {each.label: each.value for each in app.metric},
    "messages": [each.value for each in app.code],
    "titles": [each.label for each in app.expander],
    "errors": [each.value for each in (*app.error, *app.exception)],
}
print(json.dumps(shown))
