package main

// mutation is a fault for one promise: in file, old becomes new, and the test in
// pkg has to fail. Paths are relative to the module. Tests with rapid are of no use
// here: they write what made them fail into the source tree.
type mutation struct {
	id        string
	file      string
	old, new  string
	pkg, test string
}

const (
	mqtt = "transport/mqtt"
	eng  = "engine"
)

var mutations = []mutation{
	{"S1-105", mqtt + "/inbound.go", "if !d.settled {\n\t\t\treturn", "if false {\n\t\t\treturn", mqtt, "TestAcknowledgementsFollowTheOrderOfReceipt"},
	{"S1-106", mqtt + "/inbound.go", "typ = wire.PUBREC", "typ = wire.PUBACK", mqtt, "TestQoS2IsRecordedWhenSettled"},
	{"S1-201", mqtt + "/inbound.go", "len(p.Payload) > in.maxBody", "len(p.Payload) > 2*in.maxBody", mqtt, "TestPoisonIsAcknowledgedAndDropped"},
	{"S1-202", mqtt + "/inbound.go", "p.MetadataBytes > MetadataAllowance", "p.MetadataBytes > 2*MetadataAllowance", mqtt, "TestPoisonIsAcknowledgedAndDropped"},
	{"S1-203", mqtt + "/inbound.go", "p.UserCount > MaxUserProperties", "p.UserCount > MaxUserProperties+1", mqtt, "TestPoisonIsAcknowledgedAndDropped"},
	{"S1-204", mqtt + "/options.go", "return s.MaxPayloadBytes + MetadataAllowance", "return s.MaxPayloadBytes", mqtt, "TestConnectSaysWhatTheSessionIs"},
	{"S1-206", mqtt + "/inbound.go", "if !in.poison[class] {", "if true {", mqtt, "TestEachKindOfPoisonIsLoggedOnce"},
	{"S1-211", mqtt + "/wire/publish.go", "const MaxUserKept = 129", "const MaxUserKept = 130", mqtt + "/wire", "TestParsePublishKeepsTheFirst129UserProperties"},
	{"S1-215", mqtt + "/inbound.go", `"count", p.UserCount, "kept"`, `"count", p.UserKept, "kept"`, mqtt, "TestEachKindOfPoisonIsLoggedOnce"},
	{"S1-303", mqtt + "/check.go", "c.Route.DeliveryMode == gobridge.DirectHold)", "c.Route.DeliveryMode == gobridge.SharedOutbox)", mqtt, "TestCheckRefusesByTheFieldWithTheFix"},
	{"S1-314", "store/memory/outbox.go", "r.Duplicate, r.Conflict = true, other != sum", "r.Duplicate, r.Conflict = other == sum, other != sum", "store/memory", "TestOutbox"},
	{"S1-317", eng + "/failure.go", "rec.ReplayCount > r.spec.Policy.MaxReplayAttempts && now", "rec.ReplayCount > r.spec.Policy.MaxReplayAttempts || now", eng, "TestRecordIsPoisonWhenBothAttemptsAndBudgetAreSpent"},
	{"S1-318", eng + "/failure.go", "r.toClerk(ref, gobridge.CategoryExpired)", "r.toClerk(ref, gobridge.CategoryPoison)", eng, "TestExpiryComesBeforePoison"},
	{"S1-319", eng + "/clerk.go", "if n >= r.spec.Policy.MaxReplayAttempts {", "if n > r.spec.Policy.MaxReplayAttempts {", eng, "TestSpentBudgetsAreCountedAndTheMessageIsPoisonAtMaxReplayAttempts"},
	{"S1-321", eng + "/failure.go", "case d.Envelope.IDOrigin == gobridge.IDGenerated:", "case false:", eng, "TestWithoutStableIdentityTheFirstSpentBudgetIsTerminal"},
	{"S1-323", eng + "/failure.go", "r.spec.Policy.OnPermanentFailure == gobridge.ActionDrop || r.dlq == nil", "r.dlq == nil", eng, "TestPermittedDropIsCountedAndSettled"},
	{"S1-322", eng + "/clerk.go", "b.m.buried(c)", "b.m.buried(gobridge.CategoryExpired)", eng, "TestARefusedMessageIsDeadLetteredWithItsEvidenceBeforeItIsSettled"},
	{"S1-401", mqtt + "/mapping.go", "IDOrigin:      gobridge.IDProducer", "IDOrigin:      gobridge.IDGenerated", mqtt, "TestFillEnvelopeIdentity"},
	{"S1-408", eng + "/failure.go", "m.expiredInOutbox.Inc()", "m.expiredInOutbox.Add(0)", eng, "TestExpiredRecordIsNotSent"},
	{"S1-409", eng + "/failure.go", "rec.FirstAttemptAt = now", "rec.FirstAttemptAt = now.Add(-time.Hour)", eng, "TestReplayBudgetRunsFromTheFirstAttempt"},
	{"S1-501", mqtt + "/resend.go", "t == 0 || from.timeout < t", "t == 0 || from.timeout > t", mqtt, "TestShorterTimeoutDecides"},
	{"S1-502", eng + "/route.go", "out.Timeout = spec.Policy.SendTimeout", "out.Timeout = 2 * spec.Policy.SendTimeout", eng, "TestEverySendHasTheTimeoutOfItsRoute"},
	{"S1-509", mqtt + "/reason.go", `name: "Bad User Name or Password", code: gobridge.CodeNotAuthorized`, `name: "Bad User Name or Password", code: gobridge.CodeUnavailable`, mqtt, "TestEveryReasonCodeHasItsVerdict"},
	{"S1-512", mqtt + "/reason.go", "errors.Is(err, paho.ErrInvalidArguments), ", "", mqtt, "TestMapErrorClassifiesByType"},
	{"S1-527", mqtt + "/link.go", "cp.CleanStart = !s.durable", "cp.CleanStart = true", mqtt, "TestConnectSaysWhatTheSessionIs"},
	{"S1-528", mqtt + "/link.go", "s.count.resumeLost.Inc()", "s.count.resumeLost.Add(0)", mqtt, "TestLostResumeIsSignalled"},
	{"S1-606", mqtt + "/router.go", `in.evictZero("admission budget: QoS 1 and 2 need the room")`, "_ = in.evictZero", mqtt, "TestQoS0GivesWayToQoS1WhenTheBudgetIsSpent"},
	{"S1-607", mqtt + "/inbound.go", "in.held+int64(size)+deliveryOverhead <= in.budget", "in.held+int64(size)+deliveryOverhead <= 1<<40", mqtt, "TestReaderPausesWhenTheByteBudgetIsSpent"},
	{"S1-610", mqtt + "/router.go", "case pending && in.bytes+size > PendingBytesLimit:", "case pending && in.bytes+size > 2*PendingBytesLimit:", mqtt, "TestPendingQoS0IsBoundedInBytes"},
	{"S1-611", mqtt + "/router.go", "for pending && in.bytes+size > PendingBytesLimit", "for false && in.bytes+size > PendingBytesLimit", mqtt, "TestPendingQoS0IsBoundedInBytes"},
	{"S2-107", mqtt + "/inbound.go", "if !p.Dup || !d.same(p) {", "if true {", mqtt, "TestRedeliveredMessageFindsItsOpenDelivery"},
	{"S2-203", eng + "/clerk.go", "r.drop(ref, metric.DropRetryUnsupportedDLQFailed)", "r.drop(ref, metric.DropQoS0Shed)", eng, "TestLossOfQoS0IsCountedOnceAndFreesTheSlot"},
	{"S2-204", eng + "/clerk.go", "r.m.dlqFailures.Inc()", "r.m.dlqFailures.Add(2)", eng, "TestLossOfQoS0IsCountedOnceAndFreesTheSlot"},
	{"S2-313", mqtt + "/gate.go", "case <-ctx.Done():\n\t\treturn", "case <-context.Background().Done():\n\t\treturn", mqtt, "TestGateKeepsOthersOutAndLetsCancelledCallersGo"},
	{"S2-315", mqtt + "/session.go", "2*set.ConnectTimeout + 6*", "2*set.ConnectTimeout + 5*", mqtt, "TestTimesOfARecoveryFollowFromOtherSettings"},
	{"S2-324", mqtt + "/recovery.go", "case drainNotStarted:", "case drainNotStarted, drainInProgress:", mqtt, "TestRecoveryKeepsItsRulesInEverySequenceOfEvents"},
	{"S2-405", mqtt + "/session.go", "float64(s.in.health().unsettled) / float64(s.in.window)", "float64(s.in.health().unsettled)", mqtt, "TestGaugesFollowTheUnsettledPackets"},
}
