package orders;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
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
 * A Kafka broker for a test class, in a process of its own that ends with this one, however this one ends.
 *
 * <p>Its controls are HTTP and JSON. A project that has a JSON library will use it; here a regular expression does.
 */
final class TestBroker implements AutoCloseable {
  private static final Pattern READY = Pattern.compile("ready .* bootstrap=(\\S+) control=(\\S+)");

  private final HttpClient http = HttpClient.newHttpClient();
  private final Process process;
  private final String control;

  /** Where clients connect to: {@code 127.0.0.1:34567}. */
  final String bootstrapServers;

  /** Starts {@code barnabas testbroker}, which is on the path, with these arguments, and waits until it serves. */
  TestBroker(String... arguments) throws IOException {
    var command = new ArrayList<>(List.of(
        "barnabas", "testbroker", "--parent", Long.toString(ProcessHandle.current().pid())));
    command.addAll(List.of(arguments));
    process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    String line = new BufferedReader(new InputStreamReader(process.getInputStream())).readLine();
    Matcher ready = READY.matcher(line == null ? "" : line);
    if (!ready.matches()) {
      process.destroy();
      throw new IOException("no ready line from the broker: " + line);
    }
    bootstrapServers = ready.group(1);
    control = ready.group(2);
  }

  /** {@code ask("POST", "/rules", "{\"api\": \"Produce\", \"close\": true}")}: the answer's JSON. */
  String ask(String method, String path, String json) throws IOException, InterruptedException {
    var request = HttpRequest.newBuilder(URI.create(control + path))
        .method(method, HttpRequest.BodyPublishers.ofString(json))
        .build();
    var answer = http.send(request, HttpResponse.BodyHandlers.ofString());
    if (answer.statusCode() >= 300) {
      throw new IOException(method + " " + path + ": " + answer.body());
    }
    return answer.body();
  }

  /** Makes a rule and returns its id. */
  int rule(String json) throws IOException, InterruptedException {
    return number("id", ask("POST", "/rules", json));
  }

  /** How many requests this rule has acted on. */
  int hits(int rule) throws IOException, InterruptedException {
    return number("hits", ask("GET", "/rules/" + rule, ""));
  }

  private static int number(String field, String json) {
    Matcher found = Pattern.compile("\"" + field + "\": *(\\d+)").matcher(json);
    if (!found.find()) {
      throw new IllegalArgumentException("no " + field + " in " + json);
    }
    return Integer.parseInt(found.group(1));
  }

  @Override
  public void close() throws InterruptedException {
    process.destroy();
    if (!process.waitFor(30, TimeUnit.SECONDS)) {
      process.destroyForcibly();
    }
  }
}
