package guarantee

import (
	"fmt"
	"strings"

	"github.com/gobridge/gobridge"
)

// finding is what a row means for one case. A zero verdict is the row's own.
type finding struct {
	verdict Verdict
	outside bool
	text    string
	// because names the settings that decide.
	because []string
}

func resumedInTime(c *conditions) (finding, bool) {
	if !c.direct() || !c.redeliverable() {
		return finding{}, false
	}
	text := "what its destination has not confirmed in a crash comes again from the source, which keeps it " + c.keeps() + "; the send in flight may arrive twice"
	if c.shared() {
		text += "; the part of the $share group that was given to this instance waits under its client id"
	}
	return finding{text: text, because: append([]string{c.modeField()}, c.keepsFields()...)}, true
}

func resumedTooLate(c *conditions) (finding, bool) {
	if !c.direct() || !c.redeliverable() {
		return finding{}, false
	}
	text := "the broker drops its queue when it loses its own state"
	if !c.keepsForEver() {
		text = "the broker drops its queue when the bridge is away for longer than " + c.keepsShort() + ", or when it loses its own state"
	}
	text += "; the bridge says so"
	return finding{outside: true, text: text, because: c.keepsFields()}, true
}

func bestEffort(c *conditions) (finding, bool) {
	if !c.direct() || c.qos > 0 {
		return finding{}, false
	}
	return finding{
		outside: c.chosenByPublisher(),
		text:    "lost in a crash of the bridge, while it is away, or when its route is full, because nothing delivers it again",
		because: []string{c.qosField()},
	}, true
}

func stored(c *conditions) (finding, bool) {
	if !c.outboxed() || c.volatile() {
		return finding{}, false
	}
	return finding{
		text:    "once stored it survives a crash, power loss and the end of its source, while its expiry and the replay budget last; an open send may arrive twice",
		because: []string{"delivery_mode: shared_outbox", "stores.outbox.type: " + c.spec.Stores.Outbox.Type},
	}, true
}

func notStoredDurable(c *conditions) (finding, bool) {
	if !c.outboxed() || !c.redeliverable() {
		return finding{}, false
	}
	return finding{
		text:    "the source is told after it was stored; after a crash before that it delivers it again, and keeps it " + c.keeps(),
		because: append([]string{c.modeField()}, c.keepsFields()...),
	}, true
}

func notStoredEphemeral(c *conditions) (finding, bool) {
	if !c.outboxed() || c.redeliverable() {
		return finding{}, false
	}
	because := []string{c.qosField()}
	text := "lost when the bridge is away, or ends before it is stored, because nothing delivers it again"
	if !c.durable() {
		because = append(because, c.modeField())
		if c.shared() {
			text += " (a broker may hand it to another member of the $share group, but none has to)"
		}
	}
	return finding{outside: c.durable() && c.chosenByPublisher(), text: text, because: because}, true
}

func volatileStore(c *conditions) (finding, bool) {
	if !c.outboxed() || !c.volatile() {
		return finding{}, false
	}
	return finding{text: "its source is acknowledged as soon as it is in memory, and whatever waits there is lost when the process ends", because: []string{"stores.outbox.type: memory"}}, true
}

func withoutID(c *conditions) (finding, bool) {
	if !c.outboxed() || !c.redeliverable() {
		return finding{}, false
	}
	return finding{text: "without a producer's id (" + c.identity() + "), a redelivery may be stored and sent twice; equal messages all arrive", because: []string{"identity: " + c.receiver.Identity}}, true
}

func reusedID(c *conditions) (finding, bool) {
	if !c.outboxed() {
		return finding{}, false
	}
	return finding{outside: true, text: "a second message under the id (" + c.identity() + ") of one that is stored, or was within the retention, is dropped as its duplicate", because: []string{"identity: " + c.receiver.Identity}}, true
}

func droppedAtSource(c *conditions) (finding, bool) {
	text := "what the source broker expires, or drops because its queue is full, never reaches the bridge"
	if c.outboxed() && c.redeliverable() && !c.keepsForEver() {
		text += "; nor does what waits there for a bridge that is away for longer than " + c.keepsShort()
	}
	return finding{outside: true, text: text}, true
}

func poisonRecord(c *conditions) (finding, bool) {
	if !c.outboxed() {
		return finding{}, false
	}
	p := &c.route.Policy
	return c.refusedOrExpired(
		fmt.Sprintf("refused by its destination for good, or more than %d failed sends in at least %s", p.MaxReplayAttempts, span(p.ReplayBudget)),
		"expired in the outbox")
}

func poison(c *conditions) (finding, bool) {
	if !c.direct() || !c.redeliverable() {
		return finding{}, false
	}
	return c.givenUp(fmt.Sprintf("with a producer's id (%s), %d attempts that failed %s each on a destination that can be reached",
		c.identity(), max(c.route.Policy.MaxReplayAttempts, 1), c.budget()))
}

func unstableIdentity(c *conditions) (finding, bool) {
	if !c.direct() {
		return finding{}, false
	}
	who := "without a producer's id"
	if c.qos == 0 {
		who = "with or without a producer's id"
	}
	return c.givenUp(who + ", an attempt that failed " + c.budget() + " on a destination that can be reached")
}

func permanentFailure(c *conditions) (finding, bool) {
	if !c.direct() {
		return finding{}, false
	}
	return c.refusedOrExpired("refused by its destination for good", "expired while it waits")
}

func dlqFailsDurable(c *conditions) (finding, bool) {
	if !c.direct() || !c.redeliverable() || !c.usesDLQ() {
		return finding{}, false
	}
	return finding{text: "when its dead letter cannot be written it stays with its source, which delivers it again"}, true
}

func dlqFailsBestEffort(c *conditions) (finding, bool) {
	if !c.direct() || c.redeliverable() || !c.usesDLQ() {
		return finding{}, false
	}
	return finding{outside: c.chosenByPublisher(), text: "when its dead letter cannot be written it is lost, and counted once", because: []string{c.qosField()}}, true
}

func recordStays(c *conditions) (finding, bool) {
	if !c.outboxed() {
		return finding{}, false
	}
	if !c.usesDLQ() {
		return finding{text: "the record leaves the outbox only after its drop was counted"}, true
	}
	return finding{text: "when its dead letter cannot be written the record stays in the outbox until it can"}, true
}

func answerLost(c *conditions) (finding, bool) {
	if !c.answered {
		return finding{}, false
	}
	return finding{outside: true, text: "when the destination took it and its answer was lost it is sent again"}, true
}

func outage(c *conditions) (finding, bool) {
	p := &c.route.Policy
	because := []string{"on_unavailable: " + p.OnUnavailable}
	switch {
	case p.OnUnavailable == gobridge.UnavailableFail:
		limits := "the limits of G13 and G14"
		if c.outboxed() {
			limits = "the limits of G12"
		}
		f, _ := c.givenUp("an outage of the destination counts as failed sends; once " + limits + " are spent")
		f.because = append(because, f.because...)
		return f, true
	case c.outboxed() && c.qos == 0:
		return finding{
			verdict: PossibleLoss, outside: c.chosenByPublisher(),
			text:    fmt.Sprintf("while the destination is away up to %d messages wait in the outbox; when it is full, QoS 0 is dropped once its memory is spent", p.MaxOutboxDepth),
			because: []string{"max_outbox_depth", c.qosField()},
		}, true
	case c.outboxed():
		return finding{
			text:    fmt.Sprintf("while the destination is away up to %d messages wait in the outbox and the rest at its source, without charge", p.MaxOutboxDepth),
			because: append(because, "max_outbox_depth"),
		}, true
	case c.qos == 0:
		return finding{
			verdict: PossibleLoss, outside: c.chosenByPublisher(),
			text:    "while the destination is away QoS 0 takes at most a quarter of the route's slots, and the oldest is dropped for the newest",
			because: []string{"max_in_flight", c.qosField()},
		}, true
	}
	return finding{text: "while the destination is away, however long, messages wait at their source without charge", because: because}, true
}

func fanOut(c *conditions) (finding, bool) {
	switch {
	case !c.fansOut():
		return finding{}, false
	case c.outboxed() && c.volatile():
		return finding{verdict: PossibleLoss, text: "each binding goes on by itself, but a crash forgets what is left for any of them", because: []string{"stores.outbox.type: memory"}}, true
	case c.outboxed():
		return finding{verdict: NoLoss, text: "each binding goes on by itself, and after a crash only what is left of it is sent", because: []string{"dispatch_mode: fan_out"}}, true
	case c.redeliverable():
		return finding{text: "after a crash, bindings that were done get the message again; a binding that is away holds the message for all", because: []string{"dispatch_mode: fan_out", "delivery_mode: direct_hold"}}, true
	}
	return finding{verdict: PossibleLoss, outside: c.chosenByPublisher(), text: "a crash may leave the message with some of the bindings only", because: []string{"dispatch_mode: fan_out", c.qosField()}}, true
}

func otherInstance(c *conditions) (finding, bool) {
	if !c.outboxed() || c.exclusive == "" {
		return finding{}, false
	}
	because := []string{"session_mode: exclusive for session " + c.exclusive, "stores.outbox.type: " + c.spec.Stores.Outbox.Type}
	switch c.spec.Stores.Outbox.Type {
	case gobridge.StoreMemory:
		return finding{verdict: PossibleLoss, text: "when this instance ends, what it holds in memory is lost to the one that takes over", because: because}, true
	case gobridge.StoreSQLite:
		return finding{text: "when another instance takes over, what this one has stored waits in its own outbox until it owns the session again; keep its disk", because: because}, true
	}
	return finding{}, false // the instances share the store
}

func unconfirmedSend(c *conditions) (finding, bool) {
	if len(c.unconfirmed) == 0 {
		return finding{}, false
	}
	return finding{
		outside: !c.unconfirmedBySetting,
		text:    "sent without an answer over " + strings.Join(c.unconfirmed, ", ") + "; it counts as sent when it was written, and is lost when the connection breaks then",
		because: []string{"the sender's qos, or on_qos_downgrade of its session"},
	}, true
}

func downgrade(c *conditions) (finding, bool) {
	if !c.traits.MayDowngrade || c.qos == 0 {
		return finding{}, false
	}
	return finding{text: "the broker may grant QoS 0, and then the rows of QoS 0 hold for it", because: []string{lastKey(c.traits.DowngradeField) + ": accept"}}, true
}

func overLimit(*conditions) (finding, bool) {
	return finding{outside: true, text: "over a limit of the bridge, such as max_payload_bytes, it is dropped, counted and logged"}, true
}
