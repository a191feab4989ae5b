/*
 * Transactional producers and a reader of the Java client, driven line by line.
 *
 * A line on standard input is a command, its words separated by spaces:
 *   open NAME BOOTSTRAP TRANSACTIONAL_ID TIMEOUT_MS
 *   init NAME, begin NAME, commit NAME, abort NAME, close NAME
 *   send NAME TOPIC PARTITION VALUE           waits for the acknowledgement
 *   offsets NAME GROUP TOPIC PARTITION OFFSET
 *   read BOOTSTRAP TOPIC PARTITIONS ISOLATION_LEVEL
 *   fence BOOTSTRAP TRANSACTIONAL_ID          Admin.fenceProducers
 * Each is answered by one line: `ok` and what was read (partition:value), or `error` with the exception's class and message.
 *
 * Kept to what Janino compiles (no lambdas, raw types).
 */
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class TransactionalClients {
    static final Map PRODUCERS = new HashMap();

    static KafkaProducer open(String[] words) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", words[2]);
        properties.put("transactional.id", words[3]);
        properties.put("transaction.timeout.ms", words[4]);
        properties.put("max.block.ms", "60000");
        properties.put("key.serializer", StringSerializer.class.getName());
        properties.put("value.serializer", StringSerializer.class.getName());
        return new KafkaProducer(properties);
    }

    static String read(String[] words) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", words[1]);
        properties.put("isolation.level", words[4]);
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        KafkaConsumer consumer = new KafkaConsumer(properties);
        List partitions = new ArrayList();
        for (int i = 0; i < Integer.parseInt(words[3]); i++) {
            partitions.add(new TopicPartition(words[2], i));
        }
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        Map ends = consumer.endOffsets(partitions);
        StringBuilder found = new StringBuilder();
        while (!reached(consumer, ends)) {
            ConsumerRecords records = consumer.poll(Duration.ofMillis(200));
            for (Iterator each = records.iterator(); each.hasNext();) {
                ConsumerRecord record = (ConsumerRecord) each.next();
                found.append(' ').append(record.partition()).append(':').append(record.value());
            }
        }
        consumer.close();
        return found.toString();
    }

    static void fence(String[] words) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", words[1]);
        AdminClient admin = AdminClient.create(properties);
        try {
            admin.fenceProducers(Collections.singleton(words[2])).all().get();
        } finally {
            admin.close();
        }
    }

    static boolean reached(KafkaConsumer consumer, Map ends) {
        for (Iterator each = ends.entrySet().iterator(); each.hasNext();) {
            Map.Entry end = (Map.Entry) each.next();
            if (consumer.position((TopicPartition) end.getKey()) < ((Long) end.getValue()).longValue()) {
                return false;
            }
        }
        return true;
    }

    static String run(String[] words) throws Exception {
        if (words[0].equals("read")) {
            return read(words);
        }
        if (words[0].equals("fence")) {
            fence(words);
            return "";
        }
        if (words[0].equals("open")) {
            PRODUCERS.put(words[1], open(words));
            return "";
        }
        KafkaProducer producer = (KafkaProducer) PRODUCERS.get(words[1]);
        if (words[0].equals("init")) {
            producer.initTransactions();
        } else if (words[0].equals("begin")) {
            producer.beginTransaction();
        } else if (words[0].equals("commit")) {
            producer.commitTransaction();
        } else if (words[0].equals("abort")) {
            producer.abortTransaction();
        } else if (words[0].equals("send")) {
            producer.send(new ProducerRecord(words[2], Integer.valueOf(words[3]), null, words[4])).get();
        } else if (words[0].equals("offsets")) {
            Map offsets = new HashMap();
            TopicPartition partition = new TopicPartition(words[3], Integer.parseInt(words[4]));
            offsets.put(partition, new OffsetAndMetadata(Long.parseLong(words[5])));
            producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(words[2]));
        } else if (words[0].equals("close")) {
            PRODUCERS.remove(words[1]);
            producer.close(Duration.ZERO);
        } else {
            throw new IllegalArgumentException(words[0]);
        }
        return "";
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String answer;
            try {
                answer = "ok" + run(line.split(" "));
            } catch (Exception thrown) {
                Throwable cause = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
                answer = "error " + cause.getClass().getSimpleName() + " " + cause.getMessage();
            }
            answers.println(answer.replace('\n', ' '));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }
}
