#!/bin/sh
exec barnabas api-versions "$@"
