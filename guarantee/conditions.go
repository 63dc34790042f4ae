package guarantee

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gobridge/gobridge"
)

// conditions are what decides about one kind of packet of one filter of one route.
type conditions struct {
	spec     *gobridge.Spec
	route    *gobridge.RouteSpec
	receiver *gobridge.ReceiverSpec
	session  *gobridge.SessionSpec
	traits   gobridge.SourceTraits
	filter   string
	// filterQoS is what the filter asks for; qos is that of the packet, 0 or filterQoS.
	filterQoS, qos int
	// answered tells that a destination answers for the packet. unconfirmed are the
	// senders that send it without an answer, unconfirmedBySetting that one of them does
	// so by its settings and not because the publisher chose QoS 0.
	answered             bool
	unconfirmed          []string
	unconfirmedBySetting bool
	// exclusive is an exclusive session of the route, empty when it has none.
	exclusive string
}

// conditionsOf gathers the conditions of the packets of one QoS. The spec has passed its
// checks with these kinds.
func conditionsOf(spec *gobridge.Spec, kinds *gobridge.Kinds, route *gobridge.RouteSpec, topic *gobridge.TopicSpec, qos int) *conditions {
	c := &conditions{spec: spec, route: route, filter: topic.Topic, filterQoS: *topic.QoS, qos: qos}
	c.receiver = receiverOf(spec, route)
	c.session = spec.Use(c.receiver.SessionID).Session
	c.traits = traitsOf(c.session, kinds)
	if c.session.Mode == gobridge.ModeExclusive {
		c.exclusive = c.session.ID
	}
	for i := range route.Bindings {
		c.addSender(kinds, senderOf(spec, &route.Bindings[i]))
	}
	return c
}

func (c *conditions) addSender(kinds *gobridge.Kinds, sender *gobridge.SenderSpec) {
	session := c.spec.Use(sender.SessionID).Session
	if session.Mode == gobridge.ModeExclusive {
		c.exclusive = session.ID
	}
	confirms := kinds.Transport(session.Transport).Confirms
	downgraded := traitsOf(session, kinds).MayDowngrade
	if confirms == nil || confirms(sender, uint8(c.qos)) && !downgraded {
		c.answered = true
		return
	}
	if !slices.Contains(c.unconfirmed, sender.ID) {
		c.unconfirmed = append(c.unconfirmed, sender.ID)
	}
	if !c.chosenByPublisher() || downgraded || !confirms(sender, 1) {
		c.unconfirmedBySetting = true
	}
}

func traitsOf(s *gobridge.SessionSpec, kinds *gobridge.Kinds) gobridge.SourceTraits {
	if f := kinds.Transport(s.Transport).Source; f != nil {
		return f(s)
	}
	return gobridge.SourceTraits{Keeps: math.MaxInt64}
}

func receiverOf(spec *gobridge.Spec, r *gobridge.RouteSpec) *gobridge.ReceiverSpec {
	return &spec.Receivers[slices.IndexFunc(spec.Receivers, func(n gobridge.ReceiverSpec) bool { return n.ID == r.ReceiverID })]
}

func senderOf(spec *gobridge.Spec, b *gobridge.BindingSpec) *gobridge.SenderSpec {
	return &spec.Senders[slices.IndexFunc(spec.Senders, func(s gobridge.SenderSpec) bool { return s.ID == b.SenderID })]
}

func (c *conditions) direct() bool   { return c.route.DeliveryMode == gobridge.DirectHold }
func (c *conditions) outboxed() bool { return c.route.DeliveryMode == gobridge.SharedOutbox }

// durable tells that the source keeps for the session what it has not settled.
func (c *conditions) durable() bool { return c.session.Mode != gobridge.ModeEphemeral }

// redeliverable tells that the source delivers the packet again.
func (c *conditions) redeliverable() bool { return c.durable() && c.qos > 0 }

// volatile tells that the outbox is lost with the process.
func (c *conditions) volatile() bool { return c.spec.Stores.Outbox.Type == gobridge.StoreMemory }

func (c *conditions) fansOut() bool { return c.route.DispatchMode == gobridge.DispatchFanOut }

func (c *conditions) shared() bool {
	_, _, shared := gobridge.SplitShare(c.filter)
	return shared
}

// chosenByPublisher tells that the packet has QoS 0 although its filter asks for more.
func (c *conditions) chosenByPublisher() bool { return c.qos < c.filterQoS }

func (c *conditions) qosField() string {
	if c.chosenByPublisher() {
		return "published with QoS 0"
	}
	return "qos: " + strconv.Itoa(c.qos)
}

func (c *conditions) modeField() string { return "session_mode: " + c.session.Mode }

// budget says how long one attempt may fail.
func (c *conditions) budget() string {
	if b := *c.route.Policy.SendRetryBudget; b > 0 {
		return "for " + span(b)
	}
	return "once"
}

// keeps says how long the source waits for the bridge.
func (c *conditions) keeps() string {
	if c.keepsForEver() {
		return "for ever"
	}
	return "for " + c.keepsShort()
}

func (c *conditions) keepsForEver() bool { return c.traits.Keeps == math.MaxInt64 }

func (c *conditions) keepsShort() string {
	if c.keepsForEver() {
		return "no end"
	}
	return span(c.traits.Keeps)
}

func (c *conditions) keepsFields() []string {
	if c.traits.KeepsField == "" {
		return nil
	}
	return []string{lastKey(c.traits.KeepsField) + ": " + c.keepsShort()}
}

// identity names the properties that the receiver takes for a producer's id.
func (c *conditions) identity() string {
	switch c.receiver.Identity {
	case gobridge.IdentityMessageID:
		return "mqtt.message-id"
	case gobridge.IdentityCorrelation:
		return "correlation data"
	}
	return "mqtt.message-id or else correlation data"
}

// fate is what a policy makes of a message that is given up.
func (c *conditions) fate(action string) (what string, v Verdict) {
	switch {
	case action == gobridge.ActionDrop:
		return "dropped and counted", PossibleLoss
	case c.spec.Stores.DLQ.Type == gobridge.StoreMemory:
		return "kept as a dead letter in memory until the process ends", PossibleLoss
	}
	return "kept as a dead letter", Terminal
}

// givenUp is the finding of a row that ends as on_permanent_failure says.
func (c *conditions) givenUp(text string) (finding, bool) {
	action := c.route.Policy.OnPermanentFailure
	what, v := c.fate(action)
	return finding{verdict: v, text: text + ": " + what, because: c.fateFields("on_permanent_failure", action)}, true
}

// refusedOrExpired is the finding of a row that ends as both policies say.
func (c *conditions) refusedOrExpired(refused, expired string) (finding, bool) {
	p := &c.route.Policy
	r, v := c.fate(p.OnPermanentFailure)
	e, ev := c.fate(p.OnExpired)
	if ev == PossibleLoss {
		v = ev
	}
	text := refused + ": " + r + "; " + expired + ": " + e
	if r == e {
		text = refused + ", or " + expired + ": " + r
	}
	because := c.fateFields("on_permanent_failure", p.OnPermanentFailure)
	for _, field := range c.fateFields("on_expired", p.OnExpired) {
		if !slices.Contains(because, field) {
			because = append(because, field)
		}
	}
	return finding{verdict: v, text: text, because: because}, true
}

func (c *conditions) fateFields(field, action string) []string {
	fields := []string{field + ": " + action}
	if action == gobridge.ActionDLQ && c.spec.Stores.DLQ.Type == gobridge.StoreMemory {
		fields = append(fields, "stores.dlq.type: memory")
	}
	return fields
}

// usesDLQ tells that a terminal action of the route writes a dead letter.
func (c *conditions) usesDLQ() bool {
	p := &c.route.Policy
	return p.OnPermanentFailure == gobridge.ActionDLQ || p.OnExpired == gobridge.ActionDLQ
}

// span prints a duration without its zero parts: 24h, 1h30m, 45s.
func span(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func lastKey(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }
