/*
 * Runs the main methods of Kafka's tools inside one JVM, so that a test pays milliseconds for a tool and
 * not a JVM's start.
 *
 * Lines on standard input: `run ID CLASS STDIN ARG...` (all but ID in base64, "-" for empty) and `stop ID`,
 * which does what SIGTERM would: it runs the shutdown hooks that the tool registered. Lines on standard
 * output: `out ID BASE64`, `err ID BASE64` as the tool prints, and `exit ID STATUS` at its end.
 *
 * Each run loads the tools' own jar (first argument) through a class loader of its own, because several
 * tools keep counters in statics; everything below it stays loaded and warm. Exit.exit becomes an Error
 * that unwinds the tool's thread. Standard streams are routed by thread. Needs
 * `--add-opens java.base/java.lang=ALL-UNNAMED`, to find the hooks that tools register with Runtime.
 *
 * Kept to what Janino compiles (no lambdas): a JRE without javac is enough.
 */
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.utils.Exit;

public class ToolServer {
    static final InheritableThreadLocal CURRENT = new InheritableThreadLocal();
    static final Map JOBS = new ConcurrentHashMap();
    static PrintStream channel;
    static InputStream realIn;
    static URL toolsJar;

    static class ExitError extends Error {
        final int status;

        ExitError(int status) {
            super("exit " + status);
            this.status = status;
        }
    }

    static class Job implements Runnable {
        final String id;
        final String mainClass;
        final String[] arguments;
        final InputStream stdin;
        final ArrayList hooks = new ArrayList();
        final ThreadGroup group;
        int status = -1;
        boolean hooksRan;

        Job(String id, String mainClass, byte[] stdin, String[] arguments) {
            this.id = id;
            this.mainClass = mainClass;
            this.stdin = new ByteArrayInputStream(stdin);
            this.arguments = arguments;
            this.group = new ThreadGroup("job-" + id);
        }

        synchronized void exit(int status) {
            if (this.status == -1) {
                this.status = status;
            }
        }

        public void run() {
            CURRENT.set(this);
            URLClassLoader loader = new URLClassLoader(new URL[] {toolsJar}, ToolServer.class.getClassLoader());
            Thread.currentThread().setContextClassLoader(loader);
            try {
                Method main = Class.forName(mainClass, true, loader).getMethod("main", new Class[] {String[].class});
                main.invoke(null, new Object[] {arguments});
            } catch (InvocationTargetException thrown) {
                if (!(thrown.getCause() instanceof ExitError)) {
                    thrown.getCause().printStackTrace(System.err);
                    exit(1);
                }
            } catch (Throwable thrown) {
                thrown.printStackTrace(System.err);
                exit(1);
            }
            exit(0);
            runHooks();
            System.out.flush();
            System.err.flush();
            JOBS.remove(id);
            send("exit " + id + " " + status);
        }

        /* Some tools register with Runtime itself: theirs are the hooks in the job's thread group. */
        void takeRuntimeHooks() {
            try {
                Class holder = Class.forName("java.lang.ApplicationShutdownHooks");
                Field field = holder.getDeclaredField("hooks");
                field.setAccessible(true);
                synchronized (holder) {
                    Map registered = (Map) field.get(null);
                    Object[] threads = registered.keySet().toArray();
                    for (int i = 0; i < threads.length; i++) {
                        if (((Thread) threads[i]).getThreadGroup() == group) {
                            registered.remove(threads[i]);
                            hooks.add(threads[i]);
                        }
                    }
                }
            } catch (Throwable thrown) {
                thrown.printStackTrace(System.err);
            }
        }

        void runHooks() {
            Object[] pending;
            synchronized (this) {
                if (hooksRan) {
                    return;
                }
                hooksRan = true;
                takeRuntimeHooks();
                pending = hooks.toArray();
            }
            for (int i = 0; i < pending.length; i++) {
                try {
                    ((Runnable) pending[i]).run();
                } catch (Throwable thrown) {
                    thrown.printStackTrace(System.err);
                }
            }
        }
    }

    static class RoutedOut extends OutputStream {
        final String kind;
        final PrintStream fallback;

        RoutedOut(String kind, PrintStream fallback) {
            this.kind = kind;
            this.fallback = fallback;
        }

        public void write(int single) throws IOException {
            write(new byte[] {(byte) single}, 0, 1);
        }

        public void write(byte[] bytes, int offset, int length) throws IOException {
            Job job = (Job) CURRENT.get();
            if (job == null) {
                fallback.write(bytes, offset, length);
                fallback.flush();
                return;
            }
            byte[] copy = new byte[length];
            System.arraycopy(bytes, offset, copy, 0, length);
            send(kind + " " + job.id + " " + Base64.getEncoder().encodeToString(copy));
        }
    }

    static class RoutedIn extends InputStream {
        public int read() throws IOException {
            Job job = (Job) CURRENT.get();
            return job == null ? -1 : job.stdin.read();
        }

        public int read(byte[] bytes, int offset, int length) throws IOException {
            Job job = (Job) CURRENT.get();
            return job == null ? -1 : job.stdin.read(bytes, offset, length);
        }
    }

    static class ExitProcedure implements Exit.Procedure {
        public void execute(int status, String message) {
            if (message != null) {
                System.err.println(message);
            }
            Job job = (Job) CURRENT.get();
            if (job != null) {
                job.exit(status);
            }
            throw new ExitError(status);
        }
    }

    static class HookAdder implements Exit.ShutdownHookAdder {
        public void addShutdownHook(String name, Runnable hook) {
            Job job = (Job) CURRENT.get();
            if (job != null) {
                synchronized (job) {
                    job.hooks.add(hook);
                }
            }
        }
    }

    static class Stopper implements Runnable {
        final Job job;

        Stopper(Job job) {
            this.job = job;
        }

        public void run() {
            CURRENT.set(job);
            job.runHooks();
        }
    }

    static void send(String line) {
        synchronized (channel) {
            channel.println(line);
            channel.flush();
        }
    }

    static byte[] decode(String word) {
        return word.equals("-") ? new byte[0] : Base64.getDecoder().decode(word);
    }

    static String text(String word) throws IOException {
        return new String(decode(word), "UTF-8");
    }

    static void start(String[] words) throws IOException {
        String[] arguments = new String[words.length - 4];
        for (int i = 4; i < words.length; i++) {
            arguments[i - 4] = text(words[i]);
        }
        Job job = new Job(words[1], text(words[2]), decode(words[3]), arguments);
        JOBS.put(job.id, job);
        Thread thread = new Thread(job.group, job, "tool-" + job.id);
        thread.setDaemon(true);
        thread.start();
    }

    static void stop(String id) {
        Job job = (Job) JOBS.get(id);
        if (job != null) {
            Thread thread = new Thread(new Stopper(job), "stop-" + id);
            thread.setDaemon(true);
            thread.start();
        }
    }

    public static void main(String[] arguments) throws Exception {
        channel = System.out;
        realIn = System.in;
        toolsJar = new File(arguments[0]).toURI().toURL();
        System.setOut(new PrintStream(new RoutedOut("out", System.err), true, "UTF-8"));
        System.setErr(new PrintStream(new RoutedOut("err", System.err), true, "UTF-8"));
        System.setIn(new RoutedIn());
        ExitProcedure exit = new ExitProcedure();
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        Exit.setShutdownHookAdder(new HookAdder());
        BufferedReader requests = new BufferedReader(new InputStreamReader(realIn, "US-ASCII"));
        send("ready");
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("run")) {
                start(words);
            } else if (words[0].equals("stop")) {
                stop(words[1]);
            }
        }
        Runtime.getRuntime().halt(0);
    }
}
