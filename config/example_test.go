package config_test

import (
	"fmt"

	"github.com/gobridge/gobridge/config"
	"github.com/gobridge/gobridge/kinds"
)

func ExampleLoad() {
	file, diags := config.Load("gobridge.yaml", []byte(`
bridge: { id: plant-7 }
sessions:
  - { id: edge, transport: mqtt, options: { session: { broker_url: "tcp://127.0.0.1:1883" } } }
  - { id: cloud, transport: mqtt, options: { session: { broker_url: "tcp://127.0.0.1:2883", keep_alive: 1m } } }
routes:
  - id: sensors-up
    receiver: { session_id: edge, topics: [ { topic: "sensors/#" } ] }
    bindings: [ { sender: { session_id: cloud }, address: "plant-7/{topic}" } ]
    policy: { send_timeout: 10, max_inflight: 64 }
`), kinds.All())
	fmt.Println("sound:", file != nil)
	for _, d := range diags {
		if !d.Warning {
			fmt.Println(d)
		}
	}
	// Output:
	// sound: false
	// gobridge.yaml:10:29: routes[0].policy.send_timeout: expected a duration with a unit, such as 30s, found 10 (write the unit: 10s or 10ms)
	// gobridge.yaml:10:33: routes[0].policy: unknown key "max_inflight" (did you mean max_in_flight?)
}
