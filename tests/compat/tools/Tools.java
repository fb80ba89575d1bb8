import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.StreamSupport;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's command-line tools, one call after another in one Java: a line of JSON in (main, arguments,
 * input), a line out (code, output, errors). The argument is the jar of the tools: each call loads it
 * anew, because tools keep things in static fields.
 */
public class Tools {
    /** A tool wanted to end the process. */
    static class Ended extends Error {
        Ended(int code) {
            super("exit " + code, null, false, false);
        }
    }

    /** The first code that the tool ended with; some catch what ends them, and end again. */
    static Integer ended;

    static void end(int code) {
        ended = ended == null ? code : ended;
        throw new Ended(code);
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        ObjectMapper json = new ObjectMapper();
        Exit.setExitProcedure((code, message) -> end(code));
        Exit.setHaltProcedure((code, message) -> end(code));
        List<Runnable> hooks = new ArrayList<>();
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));

        URL[] jar = {new URL("file:" + args[0])};
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = calls.readLine(); line != null; line = calls.readLine()) {
            JsonNode call = json.readTree(line);
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            ByteArrayOutputStream errors = new ByteArrayOutputStream();
            System.setIn(new ByteArrayInputStream(call.get("input").asText().getBytes(StandardCharsets.UTF_8)));
            System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
            ended = null;
            hooks.clear();
            int code = run(jar, call);
            hooks.forEach(Runnable::run);
            System.out.flush();
            System.err.flush();
            Map<String, Object> answer = Map.of("code", code,
                "output", output.toString(StandardCharsets.UTF_8), "errors", errors.toString(StandardCharsets.UTF_8));
            answers.println(json.writeValueAsString(answer));
            answers.flush();
        }
    }

    static int run(URL[] jar, JsonNode call) throws Exception {
        String[] arguments = StreamSupport.stream(call.get("arguments").spliterator(), false)
            .map(JsonNode::asText).toArray(String[]::new);
        URLClassLoader tools = new URLClassLoader(jar, Tools.class.getClassLoader());
        Thread.currentThread().setContextClassLoader(tools);
        try {
            Class<?> main = Class.forName(call.get("main").asText(), true, tools);
            main.getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException wrapped) {
            if (ended != null) {
                return ended;
            }
            wrapped.getCause().printStackTrace();
            return 1;
        }
    }
}
