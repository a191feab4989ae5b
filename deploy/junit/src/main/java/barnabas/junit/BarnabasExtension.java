package barnabas.junit;

import java.util.List;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ExtensionContext.Namespace;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;

/**
 * A broker for all test classes that use this extension with the same arguments, reset before each test.
 *
 * <p>{@code @ExtendWith(BarnabasExtension.class)}, with a parameter of type {@link TestBroker}; or with arguments of
 * {@code barnabas testbroker}, {@code @RegisterExtension static final BarnabasExtension kafka = new BarnabasExtension("--nodes", "3")}.
 *
 * <p>The broker starts with the first of these classes and ends with the last test of the run. As it is reset before each test, tests
 * that share it cannot run in parallel.
 */
public final class BarnabasExtension implements BeforeAllCallback, BeforeEachCallback, ParameterResolver {
  private static final Namespace NAMESPACE = Namespace.create(BarnabasExtension.class);

  private final List<String> arguments;
  private TestBroker started;

  /** With no arguments of its own. */
  public BarnabasExtension() {
    this(new String[0]);
  }

  /** With these arguments of {@code barnabas testbroker}. */
  public BarnabasExtension(String... arguments) {
    this.arguments = List.of(arguments);
  }

  @Override
  public void beforeAll(ExtensionContext context) {
    started = brokerOf(context);
  }

  @Override
  public void beforeEach(ExtensionContext context) {
    started = brokerOf(context);
    started.reset();
  }

  /** The broker, from the first {@code @BeforeAll} on. */
  public TestBroker broker() {
    if (started == null) {
      throw new IllegalStateException("the broker starts before the first @BeforeAll; is this field static, with @RegisterExtension?");
    }
    return started;
  }

  @Override
  public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
    return parameter.getParameter().getType() == TestBroker.class;
  }

  @Override
  public Object resolveParameter(ParameterContext parameter, ExtensionContext context) {
    return brokerOf(context);
  }

  private TestBroker brokerOf(ExtensionContext context) {
    return context.getRoot().getStore(NAMESPACE)
        .getOrComputeIfAbsent(arguments, key -> new Held(new TestBroker(key.toArray(String[]::new))), Held.class)
        .broker();
  }

  /** Closed by JUnit at the end of the run, which from 5.13 on goes by AutoCloseable. */
  @SuppressWarnings("deprecation")
  private record Held(TestBroker broker) implements AutoCloseable, ExtensionContext.Store.CloseableResource {
    @Override
    public void close() {
      broker.close();
    }
  }
}
