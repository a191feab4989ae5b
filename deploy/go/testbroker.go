// Package testbroker starts a Kafka broker for tests, `barnabas testbroker`, and has its controls.
package testbroker

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

const stopLimit = 30 * time.Second

var ready = regexp.MustCompile(`^ready .* bootstrap=(\S+) control=(\S+)\n$`)

// Broker is a broker in a process of its own that ends with this one, however this one ends.
type Broker struct {
	// BootstrapServers is where clients connect to, separated by commas: 127.0.0.1:34567.
	BootstrapServers string
	// Control is the address of the controls: http://127.0.0.1:34568.
	Control string

	command *exec.Cmd
}

// Rule is a fault that was added, and how many requests it has acted on.
type Rule struct {
	ID   int `json:"id"`
	Hits int `json:"hits"`
}

// Fields are those of a request to the controls.
type Fields map[string]any

// Start starts `barnabas testbroker` with these arguments, and waits until it serves. The command is on the path, or named by the
// environment variable BARNABAS.
func Start(arguments ...string) (*Broker, error) {
	program := os.Getenv("BARNABAS")
	if program == "" {
		program = "barnabas"
	}
	arguments = append([]string{"testbroker", "--parent", strconv.Itoa(os.Getpid())}, arguments...)
	command := exec.Command(program, arguments...)
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("%s did not start (pip install barnabas): %w", program, err)
	}
	broker := &Broker{command: command}
	line, err := bufio.NewReader(output).ReadString('\n')
	found := ready.FindStringSubmatch(line)
	if found == nil {
		broker.Stop()
		return nil, fmt.Errorf("no ready line from the broker: %q, %v", line, err)
	}
	broker.BootstrapServers, broker.Control = found[1], found[2]
	return broker, nil
}

// Stop ends the broker and waits for its end. One that does not end in 30 seconds is killed.
func (b *Broker) Stop() {
	_ = b.command.Process.Signal(syscall.SIGTERM)
	limit := time.AfterFunc(stopLimit, func() { _ = b.command.Process.Kill() })
	defer limit.Stop()
	_ = b.command.Wait()
}

// Ask sends body as JSON to the controls (nil: none) and puts the answer into answer (nil: nowhere).
func (b *Broker) Ask(method, path string, body, answer any) error {
	var sent bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&sent).Encode(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequest(method, b.Control+path, &sent)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s", method, path, text)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}

// Reset removes topics, groups and rules: the broker is as new.
func (b *Broker) Reset() error {
	return b.Ask("POST", "/reset", nil, nil)
}

// CreateTopic makes a topic.
func (b *Broker) CreateTopic(name string, partitions int) error {
	return b.Ask("POST", "/topics", Fields{"name": name, "partitions": partitions}, nil)
}

// AddRule adds a fault.
func (b *Broker) AddRule(rule Fields) (added Rule, err error) {
	err = b.Ask("POST", "/rules", rule, &added)
	return added, err
}

// Hits is how many requests the rule has acted on by now.
func (b *Broker) Hits(rule Rule) (int, error) {
	err := b.Ask("GET", fmt.Sprintf("/rules/%d", rule.ID), nil, &rule)
	return rule.Hits, err
}
