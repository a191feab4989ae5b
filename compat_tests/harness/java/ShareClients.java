/*
 * Share consumers of the Java client, driven line by line.
 *
 * A line on standard input is a command, its words separated by spaces:
 *   open NAME BOOTSTRAP GROUP TOPIC KEY=VALUE...   a KafkaShareConsumer that has subscribed
 *   poll NAME TIMEOUT_MS                           the records of the first poll that has any
 *   acknowledge NAME TYPE OFFSET...                records of the last poll with any, which had one partition
 *   commit NAME                                    commitSync: partition:ok or partition:EXCEPTION for each
 *   acknowledged NAME                              what the acknowledgement callback got: partition:offset:ok or an exception
 *   lock NAME                                      acquisitionLockTimeoutMs
 *   close NAME
 *   configure BOOTSTRAP GROUP KEY=VALUE...         configs of the group
 *   offsets BOOTSTRAP GROUP                        topic:partition:start:lag for each
 *   work NAME BOOTSTRAP GROUP TOPIC SEED FILE      a member in a thread of its own; events go to the file (see Worker)
 *   finish NAME                                    ends it
 * Each is answered by one line: `ok` and what was read, or `error` with the exception's class and message. A record is
 * partition:offset:delivery count:value.
 *
 * Kept to what Janino compiles (no lambdas, raw types).
 */
import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.AcknowledgementCommitCallback;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ShareClients {
    static final Map CONSUMERS = new HashMap();
    static final Map RECORDS = new HashMap();
    static final Map CALLBACKS = new ConcurrentHashMap();
    static final Map WORKERS = new HashMap();
    static final Map ADMINS = new HashMap();

    static class Callback implements AcknowledgementCommitCallback {
        final StringBuilder found = new StringBuilder();

        public void onComplete(Map offsets, Exception thrown) {
            String how = thrown == null ? "ok" : thrown.getClass().getSimpleName();
            for (Iterator each = offsets.entrySet().iterator(); each.hasNext();) {
                Map.Entry entry = (Map.Entry) each.next();
                int partition = ((TopicIdPartition) entry.getKey()).partition();
                for (Iterator one = ((Set) entry.getValue()).iterator(); one.hasNext();) {
                    found.append(' ').append(partition).append(':').append(one.next()).append(':').append(how);
                }
            }
        }
    }

    /*
     * Acknowledges at random, one commit a poll. Events: `got PARTITION OFFSET COUNT VALUE MS`,
     * `sent PARTITION OFFSET TYPE` before the commit, `done PARTITION OFFSET TYPE ok|EXCEPTION MS` behind it.
     */
    static class Worker extends Thread {
        final KafkaShareConsumer consumer;
        final Random random;
        final PrintStream events;
        volatile boolean stopping = false;

        Worker(KafkaShareConsumer consumer, long seed, PrintStream events) {
            this.consumer = consumer;
            this.random = new Random(seed);
            this.events = events;
        }

        public void run() {
            while (!stopping) {
                try {
                    round();
                } catch (Exception thrown) {
                    events.println("failed " + thrown.toString().replace('\n', ' '));
                }
            }
            consumer.close(Duration.ofSeconds(10));
            events.close();
        }

        void round() throws Exception {
            ConsumerRecords records = consumer.poll(Duration.ofMillis(200));
            long now = System.nanoTime() / 1000000;
            Map sent = new HashMap();
            for (Iterator each = records.iterator(); each.hasNext();) {
                ConsumerRecord record = (ConsumerRecord) each.next();
                String place = record.partition() + " " + record.offset();
                events.println("got " + place + " " + record.deliveryCount().orElse(Short.valueOf((short) -1))
                    + " " + record.value() + " " + now);
                int dice = random.nextInt(100);
                AcknowledgeType type = dice < 12 ? AcknowledgeType.RELEASE
                    : dice < 15 ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT;
                events.println("sent " + place + " " + type.name());
                consumer.acknowledge(record, type);
                sent.put(place, type);
            }
            if (sent.isEmpty()) {
                return;
            }
            if (random.nextInt(4) == 0) {
                Thread.sleep(random.nextInt(30));
            }
            Map results = consumer.commitSync(Duration.ofSeconds(10));
            now = System.nanoTime() / 1000000;
            for (Iterator each = sent.entrySet().iterator(); each.hasNext();) {
                Map.Entry entry = (Map.Entry) each.next();
                String place = (String) entry.getKey();
                events.println("done " + place + " " + ((AcknowledgeType) entry.getValue()).name() + " "
                    + outcome(results, Integer.parseInt(place.split(" ")[0])) + " " + now);
            }
            events.flush();
        }

        static String outcome(Map results, int partition) {
            for (Iterator each = results.entrySet().iterator(); each.hasNext();) {
                Map.Entry entry = (Map.Entry) each.next();
                if (((TopicIdPartition) entry.getKey()).partition() == partition) {
                    return describe((Optional) entry.getValue());
                }
            }
            return "unknown";
        }
    }

    static String describe(Optional thrown) {
        return thrown.isPresent() ? thrown.get().getClass().getSimpleName() : "ok";
    }

    static KafkaShareConsumer open(String bootstrap, String group, String topic, Properties more) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", group);
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        properties.put("metadata.max.age.ms", "1000");
        properties.put("reconnect.backoff.max.ms", "200");
        properties.putAll(more);
        KafkaShareConsumer consumer = new KafkaShareConsumer(properties);
        consumer.subscribe(Collections.singleton(topic));
        return consumer;
    }

    static Properties pairs(String[] words, int first) {
        Properties found = new Properties();
        for (int i = first; i < words.length; i++) {
            int at = words[i].indexOf('=');
            found.put(words[i].substring(0, at), words[i].substring(at + 1));
        }
        return found;
    }

    static String poll(String name, long timeout) {
        KafkaShareConsumer consumer = (KafkaShareConsumer) CONSUMERS.get(name);
        long deadline = System.nanoTime() + timeout * 1000000;
        StringBuilder found = new StringBuilder();
        do {
            ConsumerRecords records = consumer.poll(Duration.ofMillis(Math.min(timeout, 200)));
            if (records.count() > 0) {
                Map kept = new HashMap();
                for (Iterator each = records.iterator(); each.hasNext();) {
                    ConsumerRecord record = (ConsumerRecord) each.next();
                    kept.put(Long.valueOf(record.offset()), record);
                    found.append(' ').append(record.partition()).append(':').append(record.offset()).append(':')
                        .append(record.deliveryCount().orElse(Short.valueOf((short) -1))).append(':')
                        .append(record.value());
                }
                RECORDS.put(name, kept);
            }
        } while (found.length() == 0 && System.nanoTime() < deadline);
        return found.toString();
    }

    static void acknowledge(String[] words) {
        KafkaShareConsumer consumer = (KafkaShareConsumer) CONSUMERS.get(words[1]);
        Map records = (Map) RECORDS.get(words[1]);
        for (int i = 3; i < words.length; i++) {
            ConsumerRecord record = (ConsumerRecord) records.get(Long.valueOf(words[i]));
            consumer.acknowledge(record, AcknowledgeType.valueOf(words[2]));
        }
    }

    static String commit(KafkaShareConsumer consumer) {
        StringBuilder found = new StringBuilder();
        Map results = consumer.commitSync(Duration.ofSeconds(30));
        for (Iterator each = results.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            found.append(' ').append(((TopicIdPartition) entry.getKey()).partition()).append(':')
                .append(describe((Optional) entry.getValue()));
        }
        return found.toString();
    }

    static AdminClient admin(String bootstrap) {
        AdminClient known = (AdminClient) ADMINS.get(bootstrap);
        if (known == null) {
            Properties properties = new Properties();
            properties.put("bootstrap.servers", bootstrap);
            properties.put("reconnect.backoff.max.ms", "200");
            properties.put("request.timeout.ms", "4000");
            properties.put("default.api.timeout.ms", "8000");
            known = AdminClient.create(properties);
            ADMINS.put(bootstrap, known);
        }
        return known;
    }

    static void configure(String[] words) throws Exception {
        Properties configs = pairs(words, 3);
        List operations = new ArrayList();
        for (Iterator each = configs.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            ConfigEntry config = new ConfigEntry((String) entry.getKey(), (String) entry.getValue());
            operations.add(new AlterConfigOp(config, AlterConfigOp.OpType.SET));
        }
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, words[2]);
        admin(words[1]).incrementalAlterConfigs(Collections.singletonMap(group, (Collection) operations)).all().get();
    }

    static String offsets(String[] words) throws Exception {
        Map asked = Collections.singletonMap(words[2], new ListShareGroupOffsetsSpec());
        Map results = (Map) admin(words[1]).listShareGroupOffsets(asked).partitionsToOffsetInfo(words[2]).get();
        StringBuilder found = new StringBuilder();
        for (Iterator each = results.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            TopicPartition partition = (TopicPartition) entry.getKey();
            SharePartitionOffsetInfo info = (SharePartitionOffsetInfo) entry.getValue();
            if (info != null) {
                found.append(' ').append(partition.topic()).append(':').append(partition.partition()).append(':')
                    .append(info.startOffset()).append(':').append(info.lag().orElse(Long.valueOf(-1)));
            }
        }
        return found.toString();
    }

    static void work(String[] words) throws Exception {
        Properties explicit = new Properties();
        explicit.put("share.acknowledgement.mode", "explicit");
        explicit.put("max.poll.records", "50");
        KafkaShareConsumer consumer = open(words[2], words[3], words[4], explicit);
        PrintStream events = new PrintStream(new FileOutputStream(words[6]), false, "UTF-8");
        Worker worker = new Worker(consumer, Long.parseLong(words[5]), events);
        WORKERS.put(words[1], worker);
        worker.start();
    }

    static String run(String[] words) throws Exception {
        String command = words[0];
        if (command.equals("configure")) {
            configure(words);
        } else if (command.equals("offsets")) {
            return offsets(words);
        } else if (command.equals("work")) {
            work(words);
        } else if (command.equals("finish")) {
            Worker worker = (Worker) WORKERS.remove(words[1]);
            worker.stopping = true;
            worker.join();
        } else if (command.equals("open")) {
            KafkaShareConsumer made = open(words[2], words[3], words[4], pairs(words, 5));
            Callback callback = new Callback();
            made.setAcknowledgementCommitCallback(callback);
            CALLBACKS.put(words[1], callback);
            CONSUMERS.put(words[1], made);
        } else if (command.equals("poll")) {
            return poll(words[1], Long.parseLong(words[2]));
        } else if (command.equals("acknowledge")) {
            acknowledge(words);
        } else if (command.equals("acknowledged")) {
            return ((Callback) CALLBACKS.get(words[1])).found.toString();
        } else if (command.equals("commit")) {
            return commit((KafkaShareConsumer) CONSUMERS.get(words[1]));
        } else if (command.equals("lock")) {
            return " " + ((KafkaShareConsumer) CONSUMERS.get(words[1])).acquisitionLockTimeoutMs().get();
        } else if (command.equals("close")) {
            ((KafkaShareConsumer) CONSUMERS.remove(words[1])).close(Duration.ofSeconds(10));
        } else {
            throw new IllegalArgumentException(command);
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
