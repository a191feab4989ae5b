#!/bin/sh
exec barnabas produce "$@"
