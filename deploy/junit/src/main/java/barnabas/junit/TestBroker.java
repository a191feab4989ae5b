package barnabas.junit;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A Kafka broker for tests, in a process of its own that ends with this one, however this one ends.
 *
 * <p>Its controls are HTTP and JSON; {@link #ask} reaches all of them.
 */
public final class TestBroker implements AutoCloseable {
  private static final Pattern READY = Pattern.compile("ready .* bootstrap=(\\S+) control=(\\S+)");

  private final HttpClient http = HttpClient.newHttpClient();
  private final Process process;
  private final String bootstrapServers;
  private final String control;

  /**
   * Starts {@code barnabas testbroker} with these arguments, and waits until it serves. The command is on the path, or named by the
   * environment variable {@code BARNABAS} or the system property {@code barnabas}.
   */
  public TestBroker(String... arguments) {
    String program = System.getProperty("barnabas", System.getenv().getOrDefault("BARNABAS", "barnabas"));
    var command = new ArrayList<>(List.of(
        program, "testbroker", "--parent", Long.toString(ProcessHandle.current().pid())));
    command.addAll(List.of(arguments));
    try {
      process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    } catch (IOException error) {
      throw new UncheckedIOException(program + " did not start (pip install barnabas)", error);
    }
    Matcher ready = READY.matcher(firstLine());
    if (!ready.matches()) {
      process.destroy();
      throw new IllegalStateException("no ready line from the broker, whose standard error has the reason");
    }
    bootstrapServers = ready.group(1);
    control = ready.group(2);
  }

  private String firstLine() {
    try {
      String line = new BufferedReader(new InputStreamReader(process.getInputStream())).readLine();
      return line == null ? "" : line;
    } catch (IOException error) {
      process.destroy();
      throw new UncheckedIOException(error);
    }
  }

  /** Where clients connect to, separated by commas: {@code 127.0.0.1:34567}. */
  public String bootstrapServers() {
    return bootstrapServers;
  }

  /** Address of the controls: {@code http://127.0.0.1:34568}. */
  public String control() {
    return control;
  }

  /** {@code ask("POST", "/rules", "{\"api\": \"Produce\", \"close\": true}")}: the answer's JSON. */
  public String ask(String method, String path, String json) {
    var request = HttpRequest.newBuilder(URI.create(control + path))
        .method(method, HttpRequest.BodyPublishers.ofString(json))
        .build();
    HttpResponse<String> answer;
    try {
      answer = http.send(request, HttpResponse.BodyHandlers.ofString());
    } catch (IOException error) {
      throw new UncheckedIOException(method + " " + path, error);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException(method + " " + path + " was interrupted", error);
    }
    if (answer.statusCode() >= 300) {
      throw new IllegalArgumentException(method + " " + path + ": " + answer.body());
    }
    return answer.body();
  }

  /** Removes topics, groups and rules: the broker is as new. */
  public void reset() {
    ask("POST", "/reset", "");
  }

  /** Makes a topic. */
  public void createTopic(String name, int partitions) {
    ask("POST", "/topics", "{\"name\": \"" + name + "\", \"partitions\": " + partitions + "}");
  }

  /** Adds a fault, in JSON, and returns its id. */
  public int addRule(String json) {
    return number("id", ask("POST", "/rules", json));
  }

  /** How many requests this rule has acted on. */
  public int hits(int rule) {
    return number("hits", ask("GET", "/rules/" + rule, ""));
  }

  private static int number(String field, String json) {
    Matcher found = Pattern.compile("\"" + field + "\": *(\\d+)").matcher(json);
    if (!found.find()) {
      throw new IllegalArgumentException("no " + field + " in " + json);
    }
    return Integer.parseInt(found.group(1));
  }

  /** Ends the broker and waits for its end. */
  @Override
  public void close() {
    process.destroy();
    try {
      if (!process.waitFor(30, TimeUnit.SECONDS)) {
        process.destroyForcibly();
      }
    } catch (InterruptedException error) {
      process.destroyForcibly();
      Thread.currentThread().interrupt();
    }
  }
}
