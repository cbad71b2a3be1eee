// nexus as a WAMP router on WebSockets, set up as in its README: one realm, anonymous sessions.
// Usage: nexus PORT
package main

import (
	"log"
	"os"

	"github.com/gammazero/nexus/v3/router"
)

func main() {
	realm := &router.RealmConfig{URI: "realm1", AnonymousAuth: true}
	if len(os.Args) != 2 {
		log.Fatal("usage: nexus PORT")
	}
	broker, err := router.NewRouter(
		&router.Config{RealmConfigs: []*router.RealmConfig{realm}}, log.New(os.Stderr, "", log.LstdFlags))
	if err != nil {
		log.Fatal(err)
	}
	closer, err := router.NewWebsocketServer(broker).ListenAndServe("127.0.0.1:" + os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer closer.Close()
	select {}
}
