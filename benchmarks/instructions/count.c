// A plugin of qemu: how many instructions a program has run, written at each getppid() of it.

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

// What is used of qemu's interface, which has kept it through all versions.
struct qemu_plugin_tb;
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id,
                                           void (*)(uint64_t id, struct qemu_plugin_tb *));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *),
                                          int flags, void *data);
void qemu_plugin_register_vcpu_syscall_cb(
    uint64_t id, void (*)(uint64_t id, unsigned, int64_t number, uint64_t, uint64_t, uint64_t,
                          uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));

#define VISIBLE __attribute__((visibility("default")))

enum { NO_REGISTERS = 0, GETPPID = 173 };  // GETPPID of Linux on 64-bit ARM

static uint64_t count;

static void run(unsigned cpu, void *instructions) {
  (void)cpu;
  count += (uintptr_t)instructions;
}

static void translated(uint64_t id, struct qemu_plugin_tb *block) {
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_cb(block, run, NO_REGISTERS,
                                       (void *)(uintptr_t)qemu_plugin_tb_n_insns(block));
}

static void called(uint64_t id, unsigned cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c,
                   uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
  (void)id, (void)cpu, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
  if (number == GETPPID) fprintf(stderr, "%" PRIu64 "\n", count);
}

VISIBLE int qemu_plugin_version = INTERFACE;

VISIBLE int qemu_plugin_install(uint64_t id, const void *machine, int words, char **word) {
  (void)machine, (void)words, (void)word;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_vcpu_syscall_cb(id, called);
  return 0;
}
