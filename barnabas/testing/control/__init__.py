"""Controls of a test broker over HTTP, with an OpenAPI description: what a test in another language uses of `Broker`.

`Control` offers them. The modules of routes are imported here because each enters its routes into the table.
"""

from barnabas.testing.control import routes as routes
from barnabas.testing.control import routes_faults as routes_faults
from barnabas.testing.control import routes_security as routes_security
from barnabas.testing.control import routes_steering as routes_steering
from barnabas.testing.control.control import Control as Control
