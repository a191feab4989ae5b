/*
 * Kafka Streams' word count: lines in, running counts out, kept in a store whose changelog is a compacted
 * topic, behind a repartition topic that Streams empties with DeleteRecords.
 *
 * Arguments: bootstrap servers, application id, input topic, output topic, state directory, processing guarantee, and
 * perhaps a file of further properties.
 * Kept to what Janino compiles (no lambdas, raw types).
 */
import java.io.FileReader;
import java.util.ArrayList;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.KeyValueMapper;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.ValueMapper;

public class WordCount {
    static class Words implements ValueMapper {
        public Object apply(Object line) {
            ArrayList words = new ArrayList();
            String[] parts = ((String) line).split(" ");
            for (int i = 0; i < parts.length; i++) {
                words.add(parts[i]);
            }
            return words;
        }
    }

    static class ByWord implements KeyValueMapper {
        public Object apply(Object key, Object word) {
            return word;
        }
    }

    static class AsText implements ValueMapper {
        public Object apply(Object count) {
            return count.toString();
        }
    }

    static class Stop extends Thread {
        final KafkaStreams streams;
        final CountDownLatch stopped;

        Stop(KafkaStreams streams, CountDownLatch stopped) {
            this.streams = streams;
            this.stopped = stopped;
        }

        public void run() {
            streams.close();
            stopped.countDown();
        }
    }

    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        if (args.length > 6) {
            FileReader security = new FileReader(args[6]);
            properties.load(security);
            security.close();
        }
        properties.put("bootstrap.servers", args[0]);
        properties.put("application.id", args[1]);
        properties.put("state.dir", args[4]);
        properties.put("processing.guarantee", args[5]);
        if (args[5].equals("exactly_once_v2")) {
            // Every count goes out, and a commit takes long enough for a kill to come before it.
            properties.put("statestore.cache.max.bytes", "0");
            properties.put("commit.interval.ms", "1000");
        } else {
            properties.put("commit.interval.ms", "100");
        }
        properties.put("repartition.purge.interval.ms", "500");
        properties.put("replication.factor", "-1"); // the broker's default
        properties.put("consumer.auto.offset.reset", "earliest");
        // Streams leaves no group when it stops: its next start waits until the old member has expired.
        properties.put("consumer.session.timeout.ms", "2000");
        properties.put("consumer.heartbeat.interval.ms", "500");
        properties.put("default.key.serde", Serdes.StringSerde.class.getName());
        properties.put("default.value.serde", Serdes.StringSerde.class.getName());
        StreamsBuilder builder = new StreamsBuilder();
        KStream lines = builder.stream(args[2]);
        KStream words = lines.flatMapValues(new Words());
        KGroupedStream grouped = words.groupBy(new ByWord(), Grouped.with(Serdes.String(), Serdes.String()));
        KTable counts = grouped.count(Materialized.as("counts"));
        KStream changes = counts.toStream().mapValues(new AsText());
        changes.to(args[3], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        CountDownLatch stopped = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Stop(streams, stopped));
        streams.start();
        stopped.await();
    }
}
