module barnabas.example/testbroker

go 1.26.0
