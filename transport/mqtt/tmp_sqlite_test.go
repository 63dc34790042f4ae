package mqtt
import ("testing";"github.com/gobridge/gobridge";"github.com/gobridge/gobridge/bridgetest";"github.com/gobridge/gobridge/metric";"github.com/gobridge/gobridge/store/sqlite")
func TestTmpSQLite(t *testing.T) {
	dir := t.TempDir()
	broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	for i, f := range []string{"in/#","in/#","in/a/#","in/a/#"} {
		k := sqlite.HistoryKind()
		h, err := k.Open(t.Context(), &gobridge.BridgeSpec{ID:"b", DataDir: dir}, &gobridge.StoreSpec{Options: k.Options()}, gobridge.Env{Logger: testLogger(t), Metrics: metric.NewRegistry()})
		if err != nil { t.Fatal(err) }
		before := subscribes(broker)
		r := startManaged(t, testUse(broker.URL(), gobridge.ModePersistent, topics(1, f)), h)
		r.awaitReady(t)
		r.stop()
		e, known, err := h.Load(t.Context(), testKey)
		t.Log(i, e, known, err, subscribes(broker)-before)
		h.Close()
	}
}
