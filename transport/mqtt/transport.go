// Package mqtt is the MQTT v5 transport.
//
// The library github.com/eclipse/paho.golang keeps the connection: dial, CONNECT,
// keep-alive, SUBSCRIBE, DISCONNECT. The messages stay with this package:
//
//   - guardConn (conn.go) takes PUBLISH and its acknowledgements out of the stream;
//   - inbound holds what came until it is settled, acknowledges in the order of
//     receipt, and offers it to the route;
//   - outbound publishes in the order of Send, without waiting, and reports each
//     outcome;
//   - managed remembers, across processes, which filters the broker has;
//   - session ties them together over connections that come and go.
//
// Guarantees: a message is acknowledged to its broker only after its delivery was
// settled (QoS 1 by PUBACK, QoS 2 by PUBREC); a publish is confirmed by PUBACK,
// by PUBCOMP, or, at QoS 0, once its bytes have reached the kernel. Outbound
// state lives in memory.
package mqtt

import "github.com/gobridge/gobridge"

// Name is the word for this transport in a config.
const Name = "mqtt"

// Transport describes MQTT to the engine.
func Transport() *gobridge.Transport {
	return &gobridge.Transport{
		Name:            Name,
		SessionOptions:  func() any { return NewSessionOptions() },
		ReceiverOptions: func() any { return NewReceiverOptions() },
		SenderOptions:   func() any { return NewSenderOptions() },
		Check:           check,
		Warn:            warn,
		Endpoints:       endpoints,
		ClientID:        clientID,
		OwnClientID:     ownClientID,
		NoLocal:         noLocal,
		Source:          sourceTraits,
		Confirms:        confirms,
		DefaultAddress:  defaultAddress,
		CheckAddress:    gobridge.ValidateTopic,
		Carry:           newCarried,
		Subscriptions:   subscriptions,
		Seed:            seed,
		Probe:           probe,
		Open:            openSession,
	}
}
