package orders;

import static org.junit.jupiter.api.Assertions.assertEquals;

import barnabas.junit.BarnabasExtension;
import barnabas.junit.TestBroker;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;

/** What the Java client makes of a broker that misbehaves. One broker for the class, reset before each test. */
@Timeout(60)
class OrdersTest {
  @RegisterExtension
  static final BarnabasExtension kafka = new BarnabasExtension();

  @BeforeEach
  void makeTheTopic(TestBroker broker) {
    broker.createTopic("orders", 1);
  }

  @Test
  void whatIsProducedIsConsumed() throws Exception {
    produce("12", "13");
    assertEquals(List.of("12", "13"), consume(2));
  }

  @Test
  void theProducerLooksForTheLeaderAgain(TestBroker broker) throws Exception {
    int rule = broker.addRule(
        """
        {"api": "Produce", "topic": "orders", "times": 1, "error": "NOT_LEADER_OR_FOLLOWER"}""");
    produce("12");
    assertEquals(1, broker.hits(rule));
    assertEquals(List.of("12"), consume(1));
  }

  /** The broker has written the record, but the producer does not know, and sends it again: it is there once. */
  @Test
  void anAcknowledgementThatIsLostMakesNoDuplicate(TestBroker broker) throws Exception {
    int rule = broker.addRule(
        """
        {"api": "Produce", "topic": "orders", "times": 1, "close": true, "served": true}""");
    produce("12");
    produce("13");
    assertEquals(1, broker.hits(rule));
    assertEquals(List.of("12", "13"), consume(2));
  }

  @Test
  void theConsumerConnectsAgain(TestBroker broker) throws Exception {
    produce("12");
    int rule = broker.addRule("{\"api\": \"Fetch\", \"topic\": \"orders\", \"nth\": 1, \"close\": true}");
    assertEquals(List.of("12"), consume(1));
    assertEquals(1, broker.hits(rule));
  }

  private static void produce(String... values) throws Exception {
    Map<String, Object> config = Map.of("bootstrap.servers", kafka.broker().bootstrapServers());
    try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
      for (String value : values) {
        producer.send(new ProducerRecord<>("orders", value)).get();
      }
    }
  }

  /** The first {@code count} values of the topic, read by a group. */
  private static List<String> consume(int count) {
    Map<String, Object> config = Map.of(
        "bootstrap.servers", kafka.broker().bootstrapServers(), "group.id", "billing", "auto.offset.reset", "earliest");
    List<String> values = new ArrayList<>();
    try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
      consumer.subscribe(List.of("orders"));
      while (values.size() < count) {
        consumer.poll(Duration.ofSeconds(1)).forEach(record -> values.add(record.value()));
      }
    }
    return values;
  }
}
