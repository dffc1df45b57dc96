/* machine.h: the part of the machine probe that tests drive with made-up limits. */
#ifndef LLM_MACHINE_H
#define LLM_MACHINE_H

#include "base/cgroup.h"
#include "localllm.h"

/* Applies limits to n_cpus, memory_bytes and free_bytes, and derives n_threads. */
void llm_machine_limit(llm_machine *m, const llm_cgroup_limits *limits);

#endif
