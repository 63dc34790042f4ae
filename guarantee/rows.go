package guarantee

import "slices"

// Verdict is what a row comes to.
type Verdict string

// The verdicts.
const (
	NoLoss       Verdict = "no_loss"
	PossibleLoss Verdict = "possible_loss"
	MayRepeat    Verdict = "may_repeat"
	Collapse     Verdict = "collapse"
	Terminal     Verdict = "terminal_action"
	Waits        Verdict = "waits"
	Refused      Verdict = "refused"
)

// String is the verdict in words.
func (v Verdict) String() string {
	switch v {
	case NoLoss:
		return "no loss"
	case PossibleLoss:
		return "possible loss"
	case MayRepeat:
		return "may repeat"
	case Collapse:
		return "collapses"
	case Terminal:
		return "terminal action"
	}
	return string(v)
}

// Row is one row of the matrix.
type Row struct {
	// ID is G and two digits for the rows of the matrix; what depends on settings that
	// the matrix does not speak of has a word.
	ID string
	// Source, Mode, When and Then are the columns of the page: which messages, the
	// delivery mode, what happens, what the bridge owes.
	Source, Mode, When, Then string
	// Verdict is that of the row in general; what the settings of a route make of it is
	// in the finding.
	Verdict Verdict
	// Outside tells that the cause lies outside the bridge, which cannot prevent it.
	Outside bool

	// apply says what the row means for one case, false when it does not apply. Nil: it
	// applies to no config that passes its checks.
	apply func(c *conditions) (finding, bool)
}

const (
	durableSource = "QoS 1/2, persistent or exclusive session"
	anySource     = "any"
	anyMode       = "either"
	direct        = "direct_hold"
	outbox        = "shared_outbox"
)

// rows is the matrix. The texts of a row are for every config, those of its apply
// function for one.
var rows = []Row{
	{
		ID: "G01", Source: durableSource, Mode: direct, When: "crash or restart, resumed within the session expiry",
		Then:    "what was not acknowledged comes again from the source; the send in flight is repeated",
		Verdict: NoLoss, apply: resumedInTime,
	},
	{
		ID: "G02", Source: durableSource, Mode: direct, When: "resumed after the session expiry, or after a restart of a broker without persistence",
		Then:    "the broker has dropped its queue; told by `MQTTSessionResumeLost`, a warning, and `last_error` until the next converged reconcile",
		Verdict: PossibleLoss, Outside: true, apply: resumedTooLate,
	},
	{
		ID: "G03", Source: "QoS 1/2 on a clean-start session", Mode: direct, When: "the config is read",
		Then:    "refused, with the field, the reason and the fix",
		Verdict: Refused,
	},
	{
		ID: "G04", Source: "QoS 0", Mode: direct, When: "any",
		Then: "best effort, alone or beside QoS 1/2 filters: nothing delivers it again, though a send in flight may have arrived. " +
			"Start-up names the filters; a dead-letter queue or an explicit permission to drop is required",
		Verdict: PossibleLoss, apply: bestEffort,
	},
	{
		ID: "G05", Source: "any, with a producer's id", Mode: outbox, When: "stored durably, then any crash",
		Then:    "sent from the outbox whatever happens to the source, while its expiry and the replay budget last",
		Verdict: NoLoss, apply: stored,
	},
	{
		ID: "G06", Source: durableSource, Mode: outbox, When: "crash before it was stored",
		Then:    "the source is acknowledged after the write: it delivers the message again",
		Verdict: NoLoss, apply: notStoredDurable,
	},
	{
		ID: "G07", Source: "QoS 0, or an ephemeral session", Mode: outbox, When: "crash before it was stored",
		Then:    "nothing durable existed; start-up says so",
		Verdict: PossibleLoss, apply: notStoredEphemeral,
	},
	{
		ID: "G08", Source: anySource, Mode: outbox + ", store in memory", When: "the process ends",
		Then:    "what waits is gone; such a store has to be asked for by name and is announced at start",
		Verdict: PossibleLoss, apply: volatileStore,
	},
	{
		ID: "G09", Source: "QoS 1/2, no producer's id", Mode: outbox, When: "redelivery",
		Then:    "equal messages all arrive, none collapses; a redelivery may arrive twice, because each gets an id of its own",
		Verdict: MayRepeat, apply: withoutID,
	},
	{
		ID: "G10", Source: "one producer's id for two messages", Mode: outbox, When: "the second one comes",
		Then:    "acknowledged and dropped as a duplicate, counted as `OutboxDuplicateSuppressed`; with another payload as `reason=\"identity_conflict\"`, with a warning",
		Verdict: Collapse, Outside: true, apply: reusedID,
	},
	{
		ID: "G11", Source: anySource, Mode: anyMode, When: "the source broker drops before the bridge has received",
		Then:    "its expiry or the limit of its queue; the bridge cannot know",
		Verdict: PossibleLoss, Outside: true, apply: droppedAtSource,
	},
	{
		ID: "G12", Source: "any, stored", Mode: outbox, When: "more than `max_replay_attempts` failed sends, and `replay_budget` spent since the first",
		Then:    "terminal action, as `on_permanent_failure` says; an expired message is expired first, as `on_expired` says",
		Verdict: Terminal, apply: poisonRecord,
	},
	{
		ID: "G13", Source: "a stable id, with redelivery", Mode: direct, When: "attempts reach `max_replay_attempts` (an attempt is one spent `send_retry_budget`)",
		Then:    "terminal action; attempts are counted in the replay ledger, by id",
		Verdict: Terminal, apply: poison,
	},
	{
		ID: "G14", Source: "no stable id", Mode: direct, When: "the first spent `send_retry_budget`",
		Then:    "terminal action, category `unstable_identity`",
		Verdict: Terminal, apply: unstableIdentity,
	},
	{
		ID: "G15", Source: anySource, Mode: direct, When: "permanent failure or expiry",
		Then:    "as `on_permanent_failure` and `on_expired` say: settled after the dead letter was written, or dropped and counted",
		Verdict: Terminal, apply: permanentFailure,
	},
	{
		ID: "G16", Source: durableSource, Mode: direct, When: "the dead letter cannot be written",
		Then:    "left unsettled: a bounded recovery of the session asks for it again, and no dead letter is counted",
		Verdict: NoLoss, apply: dlqFailsDurable,
	},
	{
		ID: "G17", Source: "nothing can deliver it again (QoS 0)", Mode: direct, When: "retry is impossible and the dead letter cannot be written",
		Then:    "lost, counted exactly once as `MessagesDropped{reason=\"retry_unsupported_dlq_failed\"}`; the slot is freed, no session is recycled",
		Verdict: PossibleLoss, apply: dlqFailsBestEffort,
	},
	{
		ID: "G18", Source: "any, stored", Mode: outbox, When: "terminal action",
		Then:    "the record goes only after the dead letter was written or the drop was counted; until then it stays and is tried again",
		Verdict: NoLoss, apply: recordStays,
	},
	{
		ID: "G19", Source: anySource, Mode: anyMode, When: "the destination accepted and its answer was lost",
		Then:    "sent again: destinations have to cope with a repetition",
		Verdict: MayRepeat, Outside: true, apply: answerLost,
	},
	{
		ID: "outage", Source: anySource, Mode: anyMode, When: "the destination cannot be reached",
		Then: "`on_unavailable: hold`: held without charge, however long it lasts; held QoS 0 takes at most a quarter of the route's slots, the oldest makes room. " +
			"`on_unavailable: fail`: an outage is a failed send",
		Verdict: NoLoss, apply: outage,
	},
	{
		ID: "fan-out", Source: "dispatch_mode fan_out", Mode: anyMode, When: "crash while some bindings are done",
		Then:    "direct_hold: the finished bindings get the message again. shared_outbox: each binding's progress is durable",
		Verdict: MayRepeat, apply: fanOut,
	},
	{
		ID: "other-instance", Source: "exclusive session", Mode: outbox + ", store of one instance", When: "another instance takes the session over",
		Then:    "what the first one has stored waits in its own outbox until it owns the session again",
		Verdict: Waits, apply: otherInstance,
	},
	{
		ID: "unconfirmed-send", Source: anySource, Mode: anyMode, When: "a message leaves at QoS 0 and its connection breaks",
		Then:    "nobody answers a QoS 0 publish: it counts as sent when it was written",
		Verdict: PossibleLoss, apply: unconfirmedSend,
	},
	{
		ID: "downgrade", Source: "QoS 1/2 with `on_qos_downgrade: accept`", Mode: anyMode, When: "the broker grants less than the filter asks for",
		Then:    "its messages come with the lower QoS and fall under the rows of that",
		Verdict: PossibleLoss, apply: downgrade,
	},
	{
		ID: "over-limit", Source: anySource, Mode: anyMode, When: "a message is over a limit of the bridge (`max_payload_bytes`, 128 user properties, 128 KiB of metadata)",
		Then:    "acknowledged and dropped, counted as `MQTTIngressPoisonDropped`, logged as an error",
		Verdict: PossibleLoss, Outside: true, apply: overLimit,
	},
}

// Rows returns the rows in their order.
func Rows() []Row { return slices.Clone(rows) }
