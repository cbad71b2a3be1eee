import jakarta.websocket.ContainerProvider;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import org.cometd.bayeux.BinaryData;
import org.cometd.bayeux.Channel;
import org.cometd.bayeux.Message;
import org.cometd.bayeux.client.ClientSession;
import org.cometd.bayeux.client.ClientSessionChannel;
import org.cometd.client.BayeuxClient;
import org.cometd.client.ext.AckExtension;
import org.cometd.client.ext.BinaryExtension;
import org.cometd.client.ext.TimesyncClientExtension;
import org.cometd.client.http.jetty.JettyHttpClientTransport;
import org.cometd.client.transport.ClientTransport;
import org.cometd.client.websocket.jakarta.WebSocketTransport;
import org.cometd.common.HashMapMessage;
import org.cometd.common.JacksonJSONContextClient;
import org.eclipse.jetty.client.HttpClient;
import org.eclipse.jetty.util.ajax.JSON;

/**
 * A program that uses CometD's Java client as its documentation says. It reads commands and prints what it sees, each as
 * a JSON line, as drivers/node.mjs does, and decides nothing. Usage: java -cp ... Driver OPTIONS
 */
public class Driver {
    private static final JSON JSON_LINES = new JSON();
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private final Map<String, ClientSessionChannel.MessageListener> subscriptions = new LinkedHashMap<>();
    private final TimesyncClientExtension timesync = new TimesyncClientExtension();
    private final Client client;

    private Driver(Map<String, Object> options) throws Exception {
        Collection<Object> without = listOf(options.get("without"));
        Collection<Object> extensions = listOf(options.get("extensions"));
        // The default parser of its long-polling, Jetty's, fails at arrays in arrays.
        Map<String, Object> parser = new HashMap<>(
            Map.of(ClientTransport.JSON_CONTEXT_OPTION, new JacksonJSONContextClient())
        );
        List<ClientTransport> transports = new ArrayList<>();
        if (!without.contains("websocket")) {
            transports.add(new WebSocketTransport(parser, null, ContainerProvider.getWebSocketContainer()));
        }
        if (!without.contains("long-polling")) {
            HttpClient http = new HttpClient();
            http.start();
            transports.add(new JettyHttpClientTransport(parser, http));
        }
        ClientTransport first = transports.remove(0);
        client = new Client((String)options.get("url"), first, transports.toArray(new ClientTransport[0]));
        client.setBackOffStrategy(new BayeuxClient.BackOffStrategy.Linear(100, 500));
        if (extensions.contains("ack")) {
            client.addExtension(new AckExtension());
        }
        if (extensions.contains("timesync")) {
            client.addExtension(timesync);
        }
        if (extensions.contains("binary")) {
            client.addExtension(new BinaryExtension());
        }
        client.addExtension(new Observer());
        // Subscriptions end with their session; the documented place to renew them is a listener for handshakes.
        client.getChannel(Channel.META_HANDSHAKE).addListener((ClientSessionChannel.MessageListener)(channel, reply) -> {
            if (reply.isSuccessful()) {
                client.batch(() -> subscriptions.forEach((pattern, hear) -> client.getChannel(pattern).subscribe(hear)));
            }
        });
    }

    public static void main(String[] arguments) throws Exception {
        Driver driver = new Driver(object(JSON_LINES.fromJSON(arguments[0])));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> command = object(JSON_LINES.fromJSON(line));
            driver.execute(
                (String)command.get("name"),
                new ArrayList<>(listOf(command.get("args"))),
                reply -> show(Map.of("number", command.get("number"), "reply", reply))
            );
        }
        System.exit(0);
    }

    private void execute(String name, List<Object> arguments, Consumer<Map<String, Object>> reply) {
        ClientSession.MessageListener replied = message -> reply.accept(outcome(message));
        switch (name) {
            case "open" -> {
                ClientSessionChannel connects = client.getChannel(Channel.META_CONNECT);
                connects.addListener(new ClientSessionChannel.MessageListener() {
                    @Override
                    public void onMessage(ClientSessionChannel channel, Message message) {
                        if (message.isSuccessful()) {
                            connects.removeListener(this);
                            reply.accept(outcome(message));
                        }
                    }
                });
                client.handshake();
            }
            case "handshake" -> client.handshake(replied);
            case "subscribe" -> {
                String pattern = (String)arguments.get(0);
                ClientSessionChannel.MessageListener hear = (channel, message) -> show(Map.of("event", event(pattern, message)));
                subscriptions.put(pattern, hear);
                client.getChannel(pattern).subscribe(hear, replied);
            }
            case "unsubscribe" -> {
                String pattern = (String)arguments.get(0);
                client.getChannel(pattern).unsubscribe(subscriptions.remove(pattern), replied);
            }
            case "publish" -> client.getChannel((String)arguments.get(0)).publish(arguments.get(1), replied);
            case "publishBytes" -> { // bytes as an array of numbers, whether they are the last, and their meta
                boolean last = arguments.size() < 3 || (Boolean)arguments.get(2);
                Map<String, Object> meta = arguments.size() < 4 ? null : object(arguments.get(3));
                BinaryData data = new BinaryData(bytes(listOf(arguments.get(1))), last, meta);
                client.getChannel((String)arguments.get(0)).publish(data, replied);
            }
            case "publishWithExt" -> { // as `publish`, with the fields of the message's ext
                Message.Mutable message = new HashMapMessage();
                message.setChannel((String)arguments.get(0));
                message.setData(arguments.get(1));
                message.getExt(true).putAll(object(arguments.get(2)));
                client.getChannel((String)arguments.get(0)).publish(message, replied);
            }
            case "burst" -> { // publishes numbers, without a wait in between
                long from = (Long)arguments.get(1), count = (Long)arguments.get(2);
                AtomicLong missing = new AtomicLong(count);
                for (long number = from; number < from + count; number++) {
                    client.getChannel((String)arguments.get(0)).publish(number, message -> {
                        if (message.isSuccessful() && missing.decrementAndGet() == 0) {
                            reply.accept(Map.of("successful", true));
                        }
                    });
                }
            }
            case "clock" -> reply.accept(Map.of("offset_ms", timesync.getOffset(), "lag_ms", timesync.getLag()));
            case "move" -> { // from now on a failure changes the transport to this one; null leaves it to the client
                client.next = (String)arguments.get(0);
                reply.accept(Map.of("successful", true));
            }
            case "disconnect" -> client.disconnect(replied);
            default -> throw new IllegalArgumentException(name);
        }
    }

    /** Changes its transport as CometD's documentation shows. */
    private static class Client extends BayeuxClient {
        private volatile String next;

        private Client(String url, ClientTransport transport, ClientTransport... transports) {
            super(url, transport, transports);
        }

        @Override
        protected void onTransportFailure(Message message, ClientTransport.FailureInfo failure, ClientTransport.FailureHandler handler) {
            super.onTransportFailure(message, failure, decided -> {
                ClientTransport transport = next == null ? getTransport() : getTransport(next);
                if (transport != getTransport()) {
                    transport.init();
                    decided.transport = transport;
                    decided.url = getURL();
                }
                handler.handle(decided);
            });
        }
    }

    /** Shows every message that the client receives and sends. */
    private static class Observer implements ClientSession.Extension {
        @Override
        public boolean rcv(ClientSession session, Message.Mutable message) {
            show(Map.of("in", toTest(message)));
            return true;
        }

        @Override
        public boolean rcvMeta(ClientSession session, Message.Mutable message) {
            return rcv(session, message);
        }

        @Override
        public boolean send(ClientSession session, Message.Mutable message) {
            show(Map.of("out", toTest(message)));
            return true;
        }

        @Override
        public boolean sendMeta(ClientSession session, Message.Mutable message) {
            return send(session, message);
        }
    }

    private static Map<String, Object> event(String pattern, Message message) {
        Map<String, Object> event = new LinkedHashMap<>();
        event.put("pattern", pattern);
        event.put("channel", message.getChannel());
        event.put("data", toTest(message.getData()));
        event.put("ext", message.getExt());
        return event;
    }

    private static Map<String, Object> outcome(Message reply) {
        Map<String, Object> outcome = new LinkedHashMap<>();
        outcome.put("successful", reply.isSuccessful());
        Object failure = reply.get("failure");
        outcome.put("error", reply.get("error") != null ? reply.get("error") : failure == null ? null : "no answer");
        return outcome;
    }

    private static byte[] bytes(Collection<Object> numbers) {
        byte[] bytes = new byte[numbers.size()];
        int at = 0;
        for (Object number : numbers) {
            bytes[at++] = ((Long)number).byteValue();
        }
        return bytes;
    }

    /** What the binary extension has decoded, as JSON. */
    private static Object toTest(Object value) {
        if (value instanceof byte[] bytes) {
            return IntStream.range(0, bytes.length).map(at -> bytes[at] & 255).boxed().toList();
        }
        if (value instanceof ByteBuffer buffer) {
            byte[] bytes = new byte[buffer.remaining()];
            buffer.duplicate().get(bytes);
            return toTest(bytes);
        }
        if (value instanceof Map<?, ?> map) {
            Map<Object, Object> shown = new LinkedHashMap<>();
            map.forEach((key, each) -> shown.put(key, toTest(each)));
            return shown;
        }
        return value;
    }

    private static void show(Map<String, Object> observation) {
        OUT.println(JSON_LINES.toJSON(observation));
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> object(Object parsed) {
        return (Map<String, Object>)parsed;
    }

    private static Collection<Object> listOf(Object parsed) {
        return parsed instanceof Object[] array ? Arrays.asList(array) : new ArrayList<>((Collection<?>)parsed);
    }
}
