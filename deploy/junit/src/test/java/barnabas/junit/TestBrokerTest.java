package barnabas.junit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.UncheckedIOException;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.ExtendWith;

@Timeout(60)
@ExtendWith(BarnabasExtension.class)
@TestMethodOrder(MethodOrderer.OrderAnnotation.class)
class TestBrokerTest {
  private static TestBroker ofTheClass;

  @Test
  @Order(1)
  void aBrokerAsAParameter(TestBroker broker) {
    ofTheClass = broker;
    broker.createTopic("orders", 2);
    assertTrue(broker.ask("GET", "/topics", "").contains("orders"));
    assertEquals(0, broker.hits(broker.addRule("{\"api\": \"Produce\", \"close\": true}")));
  }

  @Test
  @Order(2)
  void theSameBrokerIsEmptyInTheNextTest(TestBroker broker) {
    assertSame(ofTheClass, broker);
    assertEquals("{}", broker.ask("GET", "/topics", "").strip());
    assertThrows(IllegalArgumentException.class, () -> broker.hits(1));
  }

  @Test
  void whatIsRefusedIsAnErrorWithTheReason(TestBroker broker) {
    var error = assertThrows(
        IllegalArgumentException.class, () -> broker.addRule("{\"api\": \"Nonsense\", \"close\": true}"));
    assertTrue(error.getMessage().contains("Nonsense"), error.getMessage());
  }

  @Test
  void aCommandThatIsMissingIsNamed() {
    System.setProperty("barnabas", "/nowhere/barnabas");
    try {
      var error = assertThrows(UncheckedIOException.class, TestBroker::new);
      assertEquals("/nowhere/barnabas did not start (pip install barnabas)", error.getMessage());
    } finally {
      System.clearProperty("barnabas");
    }
  }

  @Test
  void withoutAClassThereIsNoBroker() {
    assertThrows(IllegalStateException.class, new BarnabasExtension()::broker);
  }
}
