package barnabas.junit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;

import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;

@Timeout(60)
class ClusterTest {
  @RegisterExtension
  static final BarnabasExtension cluster = new BarnabasExtension("--nodes", "3");

  @BeforeAll
  static void isThereBeforeTheFirstTest() {
    assertEquals(3, cluster.broker().bootstrapServers().split(",").length);
  }

  @Test
  void theParameterIsTheSame(TestBroker broker) {
    assertSame(cluster.broker(), broker);
  }
}
