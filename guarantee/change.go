package guarantee

import (
	"time"

	"github.com/gobridge/gobridge"
)

// Change is one change of a config, or of its producers.
type Change struct {
	Write string `json:"write"`
	Why   string `json:"why"`
}

// ampleKeep is how long a source should keep messages for a bridge that is away:
// shorter, and a night decides.
const ampleKeep = 24 * time.Hour

// strongestChange returns what would strengthen a filter most: first what closes a
// loss within the bridge, the widest first, then what narrows those outside of it,
// then what saves repetitions. Nil when nothing is left.
func strongestChange(c *conditions) *Change {
	p := &c.route.Policy
	switch {
	case c.filterQoS == 0 && c.durable():
		return &Change{"qos: 1 for the filter", "the source then delivers again what the bridge has not acknowledged"}
	case c.filterQoS == 0:
		return &Change{"qos: 1 for the filter, with session_mode: persistent", "the source then keeps what the bridge has not acknowledged and delivers it again"}
	case c.outboxed() && c.volatile():
		return &Change{"stores.outbox.type: sqlite", "what is acknowledged then survives the end of the process"}
	case !c.durable():
		return &Change{"session_mode: persistent for session " + c.session.ID, "the source then delivers again what was not stored"}
	case c.traits.MayDowngrade:
		return &Change{lastKey(c.traits.DowngradeField) + ": fail for session " + c.session.ID, "a filter is then never served with less than it asks for without a word"}
	case len(c.unconfirmed) > 0:
		return &Change{"qos: 1 for sender " + c.unconfirmed[0] + ", and on_qos_downgrade: fail for its session", "a message is then settled after its destination answered"}
	case p.OnPermanentFailure == gobridge.ActionDrop && c.spec.Stores.DLQ.Type == gobridge.StoreNone:
		return &Change{"on_permanent_failure: dlq, without stores.dlq.type: none", "what cannot be delivered is then kept"}
	case p.OnPermanentFailure == gobridge.ActionDrop:
		return &Change{"on_permanent_failure: dlq", "what cannot be delivered is then kept"}
	case c.usesDLQ() && c.spec.Stores.DLQ.Type == gobridge.StoreMemory:
		return &Change{"stores.dlq.type: sqlite", "dead letters then survive the end of the process"}
	case p.OnExpired == gobridge.ActionDrop:
		return &Change{"on_expired: dlq", "what expires is then kept"}
	case p.OnUnavailable == gobridge.UnavailableFail:
		return &Change{"on_unavailable: hold", "an outage then costs no message anything"}
	case c.traits.Keeps < ampleKeep:
		return &Change{lastKey(c.traits.KeepsField) + ": 86400 or more for session " + c.session.ID, "the source then keeps messages for a bridge that is away longer than " + c.keepsShort()}
	case c.direct() && c.fansOut():
		return &Change{"delivery_mode: shared_outbox", "each binding's progress is then durable: a crash repeats no finished one, and a slow one does not hold the others"}
	case c.direct():
		return &Change{"delivery_mode: shared_outbox", "the bridge's disk, not the queue of the source broker, then bridges an outage of the destination"}
	case c.receiver.Identity == gobridge.IdentityCorrelation:
		return &Change{"identity: message_id, and a unique mqtt.message-id from the producers", "a repetition is then recognised, and requests that share correlation data do not collapse"}
	}
	return &Change{"a unique mqtt.message-id from the producers, where they send none yet", "a redelivery is then recognised and not stored twice"}
}
