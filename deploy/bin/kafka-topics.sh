#!/bin/sh
exec barnabas topics "$@"
