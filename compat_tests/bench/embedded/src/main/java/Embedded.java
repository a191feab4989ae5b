import org.springframework.kafka.test.EmbeddedKafkaKraftBroker;

/** The broker of spring-kafka-test in this JVM, for compat_tests/bench/doubles.py. */
public class Embedded {
  public static void main(String[] arguments) throws Exception {
    EmbeddedKafkaKraftBroker broker = new EmbeddedKafkaKraftBroker(1, 1);
    broker.afterPropertiesSet();
    System.out.println("ready " + broker.getBrokersAsString());
    Thread.sleep(Long.MAX_VALUE);
  }
}
