package metric

// The labels. Their values come from the config (ids) or from the closed sets
// below, never from a message: no topic, client, message id or error text.
const (
	LabelRoute    = "route_id"
	LabelBinding  = "binding_id"
	LabelSession  = "session_id"
	LabelStore    = "store"
	LabelReason   = "reason"
	LabelCategory = "category"
	LabelOutcome  = "outcome"
	LabelCode     = "code"
)

// Other stands for a value outside the closed set of its label, so that a
// transport or store with words of its own cannot add series.
const Other = "other"

// Reasons of MessagesDropped.
const (
	DropPermanent           = "permanent"
	DropPoison              = "poison"
	DropUnstableIdentity    = "unstable_identity"
	DropSubscriptionRemoved = "subscription_removed"
	// DropRetryUnsupported: nothing can deliver the message again and the policy
	// permits to lose it.
	DropRetryUnsupported = "retry_unsupported"
	// DropRetryUnsupportedDLQFailed: nothing can deliver the message again and the
	// dead-letter queue did not take it (guarantee G17).
	DropRetryUnsupportedDLQFailed = "retry_unsupported_dlq_failed"
	// DropQoS0Shed: a held QoS 0 message gave its slot to a newer one (B8).
	DropQoS0Shed = "qos0_shed"
)

// Reasons of MessagesReturned.
const (
	// ReturnShutdown: the bridge stopped, or the route was taken out of it.
	ReturnShutdown = "shutdown"
	// ReturnRecovering: the source's session is recycled and delivers again.
	ReturnRecovering = "recovering"
	// ReturnRetry: the delivery was given back by Delivery.Retry.
	ReturnRetry = "retry"
	// ReturnStepDown: another instance may own the source's session from here on.
	ReturnStepDown = "step_down"
	// ReturnSessionEnd: the source's session ended under the delivery.
	ReturnSessionEnd = "session_end"
)

// Outcomes of MQTTReceiverEmitRejected.
const (
	EmitRecovering = "recovering"
	EmitLost       = "lost"
)

// Reasons of MQTTSessionTakeover.
const (
	// TakeoverReported: the broker said so in its DISCONNECT.
	TakeoverReported = "reported"
	// TakeoverInferred: the connection flaps as it does under a takeover (D7).
	TakeoverInferred = "inferred"
)

// Reasons of OutboxDuplicateSuppressed.
const (
	DuplicateRepeat = "repeat"
	// DuplicateIdentityConflict: one message id arrived with two payloads (F3).
	DuplicateIdentityConflict = "identity_conflict"
)

// The closed sets that several metrics share. The tests compare categories and
// codes with package gobridge, which this package cannot import.
var (
	categories = []string{
		"permanent", "expired", "poison", "unstable_identity", "retry_unsupported", "filtered", "subscription_removed", Other,
	}
	codes = []string{
		"TIMEOUT", "CONNECTION_LOST", "UNAVAILABLE", "THROTTLED", "BROKER_BUSY",
		"NOT_AUTHORIZED", "FORBIDDEN", "NOT_FOUND", "INVALID_CONFIG", "PROTOCOL_ERROR",
		"QOS_NOT_SUPPORTED", "NOT_SUPPORTED", "VERSION_MISMATCH", "DUPLICATE_RECORD", "INTERNAL",
		"POISON_MESSAGE", "HOP_LIMIT", "SESSION_UNRECOVERABLE", "STALE_FENCING_TOKEN", "STORE_FULL", "INVALID_PAYLOAD",
		"PAYLOAD_TOO_LARGE", "INVALID_TOPIC", "ADDRESS_TEMPLATE", "MESSAGE_EXPIRED", "MESSAGE_TOO_OLD",
		"SHUTDOWN", "SUBSCRIPTION_REFUSED", "SUBSCRIPTION_REMOVED", "UNKNOWN_BASELINE", "LEASE_LOST", Other,
	}
	stores = []string{"outbox", "dlq", "lease", "managed_subscriptions", "replay_ledger", Other}
)

// Messages on their way through routes. For each route, over all of its bindings,
// these add up at any moment (G2):
//
//	MessagesReceived x bindings = MessagesSent + MessagesDropped + MessagesFiltered +
//	    MessagesExpired + DLQEntries + OutboxDuplicateSuppressed +
//	    MessagesReturned + MessagesInFlight + the change of OutboxDepth
//
// All but MessagesReceived count one copy of the message for each binding: an
// outcome that is decided before the bindings counts once for each of them.
var (
	MessagesReceived = &Desc{
		Name: "MessagesReceived", Kind: KindCounter, Labels: []string{LabelRoute},
		Help: "Deliveries that the route admitted.",
	}
	MessagesSent = &Desc{
		Name: "MessagesSent", Kind: KindCounter, Labels: []string{LabelRoute, LabelBinding},
		Help: "Messages that the destination confirmed.",
	}
	MessagesDropped = &Desc{
		Name: "MessagesDropped", Kind: KindCounter, Labels: []string{LabelRoute, LabelBinding, LabelReason},
		Values: map[string][]string{LabelReason: {
			DropPermanent, DropPoison, DropUnstableIdentity, DropSubscriptionRemoved, DropRetryUnsupported,
			DropRetryUnsupportedDLQFailed, DropQoS0Shed, Other,
		}},
		Help: "Messages given up without a dead letter: by policy, or because nothing could keep them.",
	}
	MessagesFiltered = &Desc{
		Name: "MessagesFiltered", Kind: KindCounter, Labels: []string{LabelRoute, LabelBinding},
		Help: "Messages that a processor filtered and that on_filtered: drop let go. Reserved: this version has no processors.",
	}
	MessagesExpired = &Desc{
		Name: "MessagesExpired", Kind: KindCounter, Labels: []string{LabelRoute, LabelBinding},
		Help: "Messages past their expiry or max_age that on_expired: drop let go.",
	}
	MessagesReturned = &Desc{
		Name: "MessagesReturned", Kind: KindCounter, Labels: []string{LabelRoute, LabelBinding, LabelReason},
		Values: map[string][]string{LabelReason: {
			ReturnShutdown, ReturnRecovering, ReturnRetry, ReturnSessionEnd, ReturnStepDown, Other,
		}},
		Help: "Messages left unsettled at their source, which delivers them again where it can.",
	}
	MessagesReordered = &Desc{
		Name: "MessagesReordered", Kind: KindCounter, Labels: []string{LabelRoute, LabelBinding},
		Help: "Messages that failed by themselves and were sent after messages received later.",
	}
	MessagesInFlight = &Desc{
		Name: "MessagesInFlight", Kind: KindGauge, Labels: []string{LabelRoute},
		Help: "Messages admitted and without an outcome, one for each binding still open.",
	}
	SendRetries = &Desc{
		Name: "SendRetries", Kind: KindCounter, Labels: []string{LabelRoute, LabelBinding},
		Help: "Sends after the first one of a message.",
	}
	SendRetryBudgetExhausted = &Desc{
		Name: "SendRetryBudgetExhausted", Kind: KindCounter, Labels: []string{LabelRoute, LabelBinding},
		Help: "Times that send_retry_budget ran out and a message was charged one attempt.",
	}
	DeliveryE2ELatency = &Desc{
		Name: "DeliveryE2ELatency", Kind: KindHistogram, Unit: "seconds", Labels: []string{LabelRoute},
		Help: "Time from the receipt of a delivery to its settlement after every destination confirmed.",
	}
)

// Dead letters.
var (
	DLQEntries = &Desc{
		Name: "DLQEntries", Kind: KindCounter, Labels: []string{LabelRoute, LabelBinding, LabelCategory},
		Values: map[string][]string{LabelCategory: categories},
		Help:   "Messages that became dead letters, counted once the store confirmed.",
	}
	DLQWriteFailures = &Desc{
		Name: "DLQWriteFailures", Kind: KindCounter, Labels: []string{LabelRoute},
		Help: "Dead letters that the store did not take.",
	}
	DLQDepth = &Desc{
		Name: "DLQDepth", Kind: KindGauge,
		Help: "Dead letters in the store.",
	}
	DLQDuplicateSuppressed = &Desc{
		Name: "DLQDuplicateSuppressed", Kind: KindCounter, Labels: []string{LabelRoute},
		Help: "Dead letters that updated an entry of the same message; also counted in DLQEntries.",
	}
)

// The outbox of shared_outbox routes.
var (
	OutboxDepth = &Desc{
		Name: "OutboxDepth", Kind: KindGauge, Labels: []string{LabelRoute, LabelBinding},
		Help: "Records that wait in the outbox.",
	}
	OutboxPersistLatency = &Desc{
		Name: "OutboxPersistLatency", Kind: KindHistogram, Unit: "seconds", Labels: []string{LabelRoute},
		Help: "Time to write a delivery to the outbox, durably.",
	}
	OutboxDrainLatency = &Desc{
		Name: "OutboxDrainLatency", Kind: KindHistogram, Unit: "seconds", Labels: []string{LabelRoute},
		Help: "Time that a record spent in the outbox until its destination confirmed. Not observed in this version.",
	}
	OutboxCompletions = &Desc{
		Name: "OutboxCompletions", Kind: KindCounter, Labels: []string{LabelRoute, LabelBinding},
		Help: "Records that reached their end and left the outbox.",
	}
	OutboxReplays = &Desc{
		Name: "OutboxReplays", Kind: KindCounter, Labels: []string{LabelRoute, LabelBinding},
		Help: "Charged failed sends of outbox records.",
	}
	OutboxDuplicateSuppressed = &Desc{
		Name: "OutboxDuplicateSuppressed", Kind: KindCounter, Labels: []string{LabelRoute, LabelBinding, LabelReason},
		Values: map[string][]string{LabelReason: {DuplicateRepeat, DuplicateIdentityConflict, Other}},
		Help:   "Messages not written because the outbox knows their identity.",
	}
	OutboxExpiredBeforeSend = &Desc{
		Name: "OutboxExpiredBeforeSend", Kind: KindCounter, Labels: []string{LabelRoute, LabelBinding},
		Help: "Records that expired in the outbox; also counted by their outcome.",
	}
)

// MQTT: receiving.
var (
	MQTTUnsettled = &Desc{
		Name: "MQTTUnsettled", Kind: KindGauge, Labels: []string{LabelSession},
		Help: "QoS 1 and 2 packets of the current connection that await their settlement.",
	}
	MQTTOldestUnsettledAge = &Desc{
		Name: "MQTTOldestUnsettledAge", Kind: KindGauge, Unit: "seconds", Labels: []string{LabelSession},
		Help: "Age of the oldest unsettled packet of the current connection; 0 without one.",
	}
	MQTTReceiveWindowUtilization = &Desc{
		Name: "MQTTReceiveWindowUtilization", Kind: KindGauge, Unit: "ratio", Labels: []string{LabelSession},
		Help: "Unsettled packets by the receive maximum; over 1 when the broker ignores it.",
	}
	MQTTReceiveWindowExceeded = &Desc{
		Name: "MQTTReceiveWindowExceeded", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "QoS 1 and 2 packets that the broker sent past the receive maximum and that were kept.",
	}
	MQTTAckAfterReconnect = &Desc{
		Name: "MQTTAckAfterReconnect", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "Settlements whose connection was gone; the broker delivers these messages again.",
	}
	MQTTSessionRecoveryRecycle = &Desc{
		Name: "MQTTSessionRecoveryRecycle", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "Reconnects begun to have unsettled deliveries sent again.",
	}
	MQTTReceiverEmitRejected = &Desc{
		Name: "MQTTReceiverEmitRejected", Kind: KindCounter, Labels: []string{LabelSession, LabelOutcome},
		Values: map[string][]string{LabelOutcome: {EmitRecovering, EmitLost, Other}},
		Help:   "Deliveries that the route refused: recovering ones are sent again by the broker, lost ones are not.",
	}
	MQTTRouterDropped = &Desc{
		Name: "MQTTRouterDropped", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "QoS 0 messages dropped because a bound of the receiver was reached.",
	}
	MQTTRouterBuffered = &Desc{
		Name: "MQTTRouterBuffered", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "Messages that waited for a receiver to appear.",
	}
	MQTTRouterOverflowDropped = &Desc{
		Name: "MQTTRouterOverflowDropped", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "QoS 1 and 2 messages acknowledged and dropped because the byte budget was spent before a receiver existed.",
	}
	MQTTRouterStalePurged = &Desc{
		Name: "MQTTRouterStalePurged", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "Messages of an ended connection that were discarded before a route took them.",
	}
	MQTTRouterUnmatchedDropped = &Desc{
		Name: "MQTTRouterUnmatchedDropped", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "Messages that no subscription matched within unmatched_grace.",
	}
	MQTTRouterCoveredRetained = &Desc{
		Name: "MQTTRouterCoveredRetained", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "Messages kept because a filter that the broker still holds covers them. Not counted in this version.",
	}
	MQTTIngressPoisonDropped = &Desc{
		Name: "MQTTIngressPoisonDropped", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "Messages acknowledged and dropped because they break a fixed limit.",
	}
	MQTTIngressUserPropertiesTruncated = &Desc{
		Name: "MQTTIngressUserPropertiesTruncated", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "Messages with more user properties than are decoded; they are dropped as violations too.",
	}
	MQTTIngressHeaderDropped = &Desc{
		Name: "MQTTIngressHeaderDropped", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "User properties left out because their name is reserved or cannot be kept.",
	}
)

// MQTT: connections, subscriptions and sending.
var (
	MQTTQoSDowngraded = &Desc{
		Name: "MQTTQoSDowngraded", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "Subscriptions that the broker granted with a lower QoS than asked for.",
	}
	MQTTSessionResumeLost = &Desc{
		Name: "MQTTSessionResumeLost", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "Reconnects at which the broker no longer had the session and its queue.",
	}
	MQTTSessionTakeover = &Desc{
		Name: "MQTTSessionTakeover", Kind: KindCounter, Labels: []string{LabelSession, LabelReason},
		Values: map[string][]string{LabelReason: {TakeoverReported, TakeoverInferred, Other}},
		Help:   "Connections that another client with the same client id took over.",
	}
	MQTTReconnects = &Desc{
		Name: "MQTTReconnects", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "Connections made after the first one.",
	}
	MQTTConnectFailures = &Desc{
		Name: "MQTTConnectFailures", Kind: KindCounter, Labels: []string{LabelSession, LabelCode},
		Values: map[string][]string{LabelCode: codes},
		Help:   "Attempts to connect that did not end in an accepted connection.",
	}
	MQTTPublishFailures = &Desc{
		Name: "MQTTPublishFailures", Kind: KindCounter, Labels: []string{LabelSession, LabelCode},
		Values: map[string][]string{LabelCode: codes},
		Help:   "Publishes that ended without the broker's confirmation.",
	}
	MQTTPublishLatency = &Desc{
		Name: "MQTTPublishLatency", Kind: KindHistogram, Unit: "seconds", Labels: []string{LabelSession},
		Help: "Time from handing a QoS 1 or 2 publish to the session to the broker's confirmation.",
	}
)

// The bridge itself.
var (
	SessionRebuilds = &Desc{
		Name: "SessionRebuilds", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "Session instances replaced because they could not go on.",
	}
	LeaseTransfers = &Desc{
		Name: "LeaseTransfers", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "Times that this instance has become the owner of an exclusive session.",
	}
	CredentialRotations = &Desc{
		Name: "CredentialRotations", Kind: KindCounter, Labels: []string{LabelSession},
		Help: "Changed credentials taken into use.",
	}
	ConfigGeneration = &Desc{
		Name: "ConfigGeneration", Kind: KindGauge,
		Help: "Reserved: a config is read at the start, not reloaded.",
	}
	ConfigReloadFailures = &Desc{
		Name: "ConfigReloadFailures", Kind: KindCounter,
		Help: "Reserved: a config is read at the start, not reloaded.",
	}
	StoreSalvaged = &Desc{
		Name: "StoreSalvaged", Kind: KindCounter, Labels: []string{LabelStore},
		Values: map[string][]string{LabelStore: stores},
		Help:   "Damaged stores set aside and begun anew with what could be read.",
	}
)

//go:generate go test -run ^TestReferenceIsUpToDate$ . -update

// Table lists every metric, in the order of docs/metrics.md.
var Table = []*Desc{
	MessagesReceived, MessagesSent, MessagesDropped, MessagesFiltered, MessagesExpired, MessagesReturned,
	MessagesReordered, MessagesInFlight, SendRetries, SendRetryBudgetExhausted, DeliveryE2ELatency,
	DLQEntries, DLQWriteFailures, DLQDepth, DLQDuplicateSuppressed,
	OutboxDepth, OutboxPersistLatency, OutboxDrainLatency, OutboxCompletions, OutboxReplays,
	OutboxDuplicateSuppressed, OutboxExpiredBeforeSend,
	MQTTUnsettled, MQTTOldestUnsettledAge, MQTTReceiveWindowUtilization, MQTTReceiveWindowExceeded,
	MQTTAckAfterReconnect, MQTTSessionRecoveryRecycle, MQTTReceiverEmitRejected, MQTTRouterDropped,
	MQTTRouterBuffered, MQTTRouterOverflowDropped, MQTTRouterStalePurged, MQTTRouterUnmatchedDropped,
	MQTTRouterCoveredRetained, MQTTIngressPoisonDropped, MQTTIngressUserPropertiesTruncated,
	MQTTIngressHeaderDropped,
	MQTTQoSDowngraded, MQTTSessionResumeLost, MQTTSessionTakeover, MQTTReconnects, MQTTConnectFailures,
	MQTTPublishFailures, MQTTPublishLatency,
	SessionRebuilds, LeaseTransfers, CredentialRotations, ConfigGeneration, ConfigReloadFailures, StoreSalvaged,
}
