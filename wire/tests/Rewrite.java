// Reads lines `package:Class version hex`, has Kafka read those bytes, and prints `hex json` of what it understood.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

public class Rewrite {
    static final Map<String, String> PACKAGES = Map.of(
        "common", "org.apache.kafka.common.message.",
        "metadata", "org.apache.kafka.common.metadata.",
        "group", "org.apache.kafka.coordinator.group.generated.",
        "share", "org.apache.kafka.coordinator.share.generated.",
        "transaction", "org.apache.kafka.coordinator.transaction.generated.");

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder output = new StringBuilder();
        HexFormat hex = HexFormat.of();
        Map<String, Method> writers = new HashMap<>();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            String[] name = words[0].split(":");
            String className = PACKAGES.get(name[0]) + name[1];
            short version = Short.parseShort(words[1]);
            byte[] bytes = words[2].equals("-") ? new byte[0] : hex.parseHex(words[2]);
            Class<?> type = Class.forName(className);
            Message message = (Message) type.getConstructor().newInstance();
            ByteBuffer buffer = ByteBuffer.wrap(bytes);
            message.read(new ByteBufferAccessor(buffer), version);
            if (buffer.hasRemaining()) throw new IllegalStateException(line + ": bytes left");
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer written = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(written), cache, version);
            Method writer = writers.get(className);
            if (writer == null) {
                writer = Class.forName(className + "JsonConverter").getMethod("write", type, short.class);
                writers.put(className, writer);
            }
            String encoded = hex.formatHex(written.array());
            output.append(encoded.isEmpty() ? "-" : encoded).append(' ').append(writer.invoke(null, message, version)).append('\n');
        }
        System.out.print(output);
    }
}
