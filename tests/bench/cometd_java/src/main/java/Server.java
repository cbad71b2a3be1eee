import org.cometd.bayeux.server.BayeuxServer;
import org.cometd.server.AbstractServerTransport;
import org.cometd.server.BayeuxServerImpl;
import org.cometd.server.JacksonJSONContextServer;
import org.cometd.server.http.JSONHttpTransport;
import org.cometd.server.http.JSONPHttpTransport;
import org.cometd.server.http.jakarta.CometDServlet;
import org.cometd.server.websocket.common.AbstractWebSocketTransport;
import org.cometd.server.websocket.jetty.JettyWebSocketTransport;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Context;
import org.eclipse.jetty.server.HttpConfiguration;
import org.eclipse.jetty.server.HttpConnectionFactory;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.util.thread.QueuedThreadPool;
import org.eclipse.jetty.websocket.server.WebSocketUpgradeHandler;

/**
 * CometD's Java server, set up as in its documentation, with Jackson as in CometD's own load tests, with keep-alive for
 * as long as the load needs it, and without a limit of sessions per browser. Usage: java -cp ... Server PORT
 */
public class Server {
    public static void main(String[] arguments) throws Exception {
        org.eclipse.jetty.server.Server server = new org.eclipse.jetty.server.Server(new QueuedThreadPool(64));
        ServerConnector connector =
            new ServerConnector(server, 1, 1, new HttpConnectionFactory(new HttpConfiguration()));
        connector.setHost("127.0.0.1");
        connector.setPort(Integer.parseInt(arguments[0]));
        connector.setAcceptQueueSize(4096);
        connector.setIdleTimeout(120_000);
        server.addConnector(connector);

        BayeuxServerImpl bayeux = new BayeuxServerImpl();
        bayeux.addTransport(new JettyWebSocketTransport(bayeux));
        bayeux.addTransport(new JSONHttpTransport(bayeux));
        bayeux.addTransport(new JSONPHttpTransport(bayeux));
        bayeux.setOption(AbstractServerTransport.TIMEOUT_OPTION, "25000");
        bayeux.setOption(JSONHttpTransport.MAX_SESSIONS_PER_BROWSER_OPTION, "-1");
        bayeux.setOption(AbstractWebSocketTransport.COMETD_URL_MAPPING_OPTION, "/bayeux/*");
        bayeux.setOption(AbstractServerTransport.JSON_CONTEXT_OPTION, JacksonJSONContextServer.class.getName());

        ServletContextHandler context = new ServletContextHandler("/");
        context.getServletContext().setAttribute(BayeuxServer.ATTRIBUTE, bayeux);
        context.setInitParameter(ServletContextHandler.MANAGED_ATTRIBUTES, BayeuxServer.ATTRIBUTE);
        ServletHolder servlet = new ServletHolder(new CometDServlet());
        servlet.setAsyncSupported(true);
        context.addServlet(servlet, "/bayeux/*");
        bayeux.setOption(Context.class.getName(), context.getContext());
        context.insertHandler(WebSocketUpgradeHandler.from(server, context));
        server.setHandler(context);
        server.start();
        server.join();
    }
}
